"""Decode steps in plain XLA: functions of the operands of `api.py`, differentiable."""

import jax
import jax.numpy as jnp

from pallas_kernels.short_conv.xla import finish
from pallas_kernels.sliding_window.api import sliding_window_step
from pallas_kernels.sliding_window.cache import SlidingWindowCache
from pallas_kernels.taylor_attention.state import TaylorState, taylor_attention_step


def taylor(q, k, v, s, z, decay, options) -> tuple[jax.Array, jax.Array, jax.Array]:
    """y, s and z after the token."""
    given = {"scale": options.scale, "eps": options.eps, "normalize": options.normalize, "decay": decay}
    y, state = taylor_attention_step(TaylorState(s, z), q, k, v, **given)
    return y, state.s, state.z


def window(q, k, v, ring_k, ring_v, position, options) -> tuple[jax.Array, jax.Array, jax.Array]:
    """y and the ring after the token."""
    y, cache = sliding_window_step(SlidingWindowCache(ring_k, ring_v, position), q, k, v, scale=options.scale)
    return y, cache.k, cache.v


def conv(x, taps, bias, input_gate, output_gate, history, options) -> tuple[jax.Array, jax.Array]:
    """y and the history after the token."""
    gated = x if input_gate is None else input_gate * x
    y, history = convolve_token(gated, taps, history)
    return finish(y, bias, output_gate, n_plain=options.n_plain), history


def convolve_token(x: jax.Array, taps: jax.Array, history: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`sum_a taps[a] x_{i-a}` in the dtype of x (b, d), and the last w - 1 inputs (b, w - 1, d)."""
    taps, before = taps.astype(jnp.float32), history.astype(jnp.float32)
    y = jnp.einsum("bwd,wd->bd", before, taps[:0:-1], precision=jax.lax.Precision.HIGHEST)
    y = y + x.astype(jnp.float32) * taps[0][None]
    newest = x[:, None].astype(history.dtype)
    later = jnp.concatenate([history[:, 1:], newest], axis=1) if history.shape[1] else history
    return y.astype(x.dtype), later
