"""The Triton kernels: values by Triton's interpreter, and what they refuse."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import triton_packages
from pallas_kernels.taylor_attention import taylor_attention
from tests.pallas_kernels.shared import assert_close
from tests.pallas_kernels.taylor_attention.cases import Call, measured, truth
from tests.pallas_kernels.triton_cases import check_interpreted


@pytest.mark.slow
def test_values_and_states():
    """Kills wrong masks, decay, head sharing, state layouts, chunks that are not full."""
    check_interpreted("taylor_attention")


def objection(monkeypatch, *, installed=True, dtype=jnp.bfloat16, k_dim=16):
    monkeypatch.setattr(triton_packages.importlib.util, "find_spec", lambda name: installed or None)
    x = jnp.zeros((1, 4, 2, k_dim), dtype)
    with pytest.raises(NotImplementedError) as error:
        taylor_attention(x, x, x, implementation="triton")
    return str(error.value)


def test_refusals_say_why(monkeypatch):
    """Kills a named implementation that falls back, or that fails inside jax-triton."""
    assert "triton: jax_triton and triton not installed; pip install 'jax-triton==0.3.1'" in objection(
        monkeypatch, installed=False
    )
    assert "runs on cuda, and this is compiled for cpu" in objection(monkeypatch)
    assert "dtypes of q, k, v are ('float32', " in objection(monkeypatch, dtype=jnp.float32)
    assert "feature_dim=17 is more than 16" in objection(monkeypatch, k_dim=17)


@pytest.mark.gpu
@pytest.mark.parametrize("t", [1, 15, 16, 17, 200])
def test_on_a_gpu(t):
    """Kills what neither interpreter nor compiler shows; bfloat16 rounds features, state and weights by 2^-9."""
    call = Call(t=t, b=2, k=16, v=64, h=4, g=2, decay=True)
    arrays = [
        np.asarray(jnp.asarray(x, jnp.bfloat16 if i < 3 else jnp.float32), np.float64)
        for i, x in enumerate(call.arrays())
    ]
    found = measured(call, dtype=jnp.bfloat16, arrays=arrays, implementation="triton")
    assert_close(found, truth(call, arrays), 2e-2)
