"""Floors against what they count: pairs of the mask, and the bytes of real arrays."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.sliding_window import empty_cache, sliding_window_attention
from pallas_kernels.sliding_window.problem import Problem
from pallas_kernels.sliding_window.workloads import SHAPES


def test_pairs():
    """Kills a floor with masked pairs, or without the shorter windows at the start."""
    for t, window in ((20, 7), (20, 1), (5, 9)):
        distance = np.arange(t)[:, None] - np.arange(t)[None]
        spec = Problem(b=2, t=t, h=3, k=4, v=5, window=window)
        assert spec.seen == ((distance >= 0) & (distance < window)).sum()
        assert spec.forward_flops() == 2 * 3 * spec.seen * 2 * (4 + 5)
        assert spec.backward_flops() == 2 * 3 * spec.seen * 2 * (3 * 4 + 2 * 5)


def test_bytes():
    """Kills heads counted for keys that have fewer, and an item size that is not the dtype's."""
    spec = Problem(b=2, t=8, h=6, g=2, k=4, v=5, window=3)
    q, k, v = jax.eval_shape(spec.inputs)
    y = jax.eval_shape(lambda *x: sliding_window_attention(*x, window=3), q, k, v)
    elements = q.size + k.size + v.size
    assert spec.forward_bytes() == 2 * elements + 2 * y.size
    assert spec.backward_bytes() == 4 * elements + 2 * y.size
    cache = jax.eval_shape(lambda: empty_cache(2, 3, 2, 4, 5, jnp.bfloat16))
    assert spec.step_bytes() == 2 * (cache.k.size + cache.v.size)
    assert spec.step_flops() == 2 * 6 * 3 * 2 * (4 + 5)


def test_headline():
    """The README's floors: 268 MB forward, 470 MB backward."""
    spec = SHAPES["headline"]["b4_h16_t8192_w64"]
    assert round(spec.forward_bytes() / 1e6) == 268
    assert round(spec.backward_bytes() / 1e6) == 470
