"""The UT transform: inverses of the triangular systems of DeltaNet, Gated DeltaNet and Kimi Delta Attention."""

from pallas_kernels.ut_transform.api import (
    IMPLEMENTATIONS,
    Transformed,
    sharded_ut_inverse,
    sharded_ut_transform,
    ut_inverse,
    ut_transform,
)
from pallas_kernels.ut_transform.values_api import delta_values, sharded_delta_values

__all__ = [
    "IMPLEMENTATIONS",
    "Transformed",
    "delta_values",
    "sharded_delta_values",
    "sharded_ut_inverse",
    "sharded_ut_transform",
    "ut_inverse",
    "ut_transform",
]
