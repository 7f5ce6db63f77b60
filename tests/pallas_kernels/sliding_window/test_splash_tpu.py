"""JAX's splash attention behind our contract, interpreted on a CPU, against float64 in numpy."""

import functools

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.dispatch import Backend
from pallas_kernels.sliding_window import backends, sliding_window_attention, splash_tpu
from tests.pallas_kernels.shared import assert_close
from tests.pallas_kernels.sliding_window.cases import Call, measured, truth


def call(**sizes):
    return Call(**({"b": 2, "h": 2, "g": 1, "k": 64, "v": 64} | sizes))


CALLS = [call(t=130, window=20, h=4, g=2), call(t=40, window=64, cache=True), call(t=130, window=40, segments=True)]
LONG = [
    call(t=1, window=5, cache=True),
    call(t=128, window=128, v=128),
    call(t=513, window=100, k=128),
    call(t=513, window=100, segments=True, h=4, g=4),
    call(t=300, window=300, cache=True),
    call(t=600, window=20, cache=True, scale=0.3),
    call(t=64, window=1000),
]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    interpreted = (functools.partial(f, interpret=True) for f in (splash_tpu.forward, splash_tpu.backward))
    original = backends.BACKENDS["splash_tpu"]
    monkeypatch.setitem(backends.BACKENDS, "splash_tpu", Backend(original.objection, *interpreted))


@pytest.mark.parametrize("call", [*CALLS, *(pytest.param(c, marks=pytest.mark.slow) for c in LONG)], ids=str)
def test_float32(call):
    """Kills: padding that is seen, keys before the cache's first, a window off by one, mixed-up heads, a lost scale."""
    assert_close(measured(call, implementation="splash_tpu"), truth(call), 1e-5)


@pytest.mark.slow
def test_bfloat16():
    """Weights and their cotangents are rounded to bfloat16 for the matmuls: 2e-3 was seen."""
    rounded = call(t=300, window=64, dtype=jnp.bfloat16)
    assert_close(measured(rounded, implementation="splash_tpu"), truth(rounded), 1e-2)


def test_what_it_is_chosen_for():
    """Kills: a TPU program that takes another way, or a shape that splash attention would fail on."""

    def program(d, platform):
        x = jax.ShapeDtypeStruct((1, 256, 2, d), jnp.float32)
        attend = jax.jit(functools.partial(sliding_window_attention, window=8))
        return attend.trace(x, x, x).jaxpr.pretty_print(), attend.trace(x, x, x).lower(lowering_platforms=(platform,))

    assert "splash" in program(64, "cpu")[0]
    assert "splash" not in program(48, "cpu")[0]
    assert "custom_call" not in program(64, "cpu")[1].as_text()
    assert "tpu_custom_call" in program(64, "tpu")[1].as_text()
    x = jnp.ones((1, 8, 1, 48))
    with pytest.raises(NotImplementedError, match="splash_tpu: head_dims 48 and 48 are not multiples of 64; use"):
        sliding_window_attention(x, x, x, window=3, implementation="splash_tpu")
