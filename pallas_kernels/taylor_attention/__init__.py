"""Taylor linear attention (Based); README.md describes derivation, layouts, floors and support."""

from pallas_kernels.taylor_attention.api import sharded_taylor_attention, taylor_attention
from pallas_kernels.taylor_attention.features import n_features as taylor_feature_count
from pallas_kernels.taylor_attention.state import (
    TaylorState,
    empty_state,
    state_from_full,
    state_to_full,
    taylor_attention_step,
)
from pallas_kernels.taylor_attention.xla import default_chunk

__all__ = [
    "TaylorState",
    "default_chunk",
    "empty_state",
    "sharded_taylor_attention",
    "state_from_full",
    "state_to_full",
    "taylor_attention",
    "taylor_attention_step",
    "taylor_feature_count",
]
