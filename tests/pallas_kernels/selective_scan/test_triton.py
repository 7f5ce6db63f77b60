"""Triton kernels of the selective scan: values by Triton's interpreter, and what they refuse."""

from typing import Any

import jax.numpy as jnp
import pytest

from pallas_kernels.selective_scan import triton
from pallas_kernels.selective_scan.problem import Problem
from tests.pallas_kernels.triton_cases import check_interpreted


@pytest.mark.slow
def test_values_and_gradients():
    """Kills a carry between blocks, or b, c or sums of another token; a document that sees the one before it; padding
    that changes a state or has a gradient; a gradient of delta without that of the decay."""
    check_interpreted("selective_scan")


def test_objections():
    """Kills states that do not fit into registers, and a dtype that no test has."""
    problem: dict[str, Any] = {"b": 1, "t": 8, "d": 100, "n": 16}
    assert triton.objection(Problem(**problem)) is None
    assert triton.objection(Problem(**problem, dtype=jnp.float16, delta_dtype=jnp.float16)) is None
    for changed, match in [({"n": 17}, "17 are more than 16"), ({"dtype": jnp.float64}, "dtype float64")]:
        assert match in (triton.objection(Problem(**problem | changed)) or "")
