"""Reference of wkv4, token by token."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.wkv4.state import EMPTY, Wkv4State


def recurrence(k, v, w, u, *, segment_ids=None, initial_state=None):
    """The equation of `api.py`, in float64 for float64 inputs (under `jax.enable_x64`), else in float32.

    Differentiable to any order in forward and reverse mode. Arguments and results: see `wkv4`, with the state.
    """
    dtype = jnp.float64 if k.dtype == jnp.float64 else jnp.float32
    rows, _, channels = k.shape
    begins = jnp.zeros(k.shape[:2], bool)
    if segment_ids is not None:
        begins = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
    zeros = jnp.zeros((rows, channels), dtype)
    state = (zeros, zeros, zeros + EMPTY) if initial_state is None else initial_state
    w, u = (x.astype(dtype)[None] for x in (w, u))

    def scaled(num, den, largest, own, v):
        """Adds a weight e^own to both sums; the scale is the larger one."""
        new = lax.stop_gradient(jnp.maximum(largest, own))
        past, own = jnp.exp(largest - new), jnp.exp(own - new)
        return past * num + own * v, past * den + own, new

    def token(state, now):
        k, v, begins = now
        num, den, largest = state
        largest = jnp.where(begins[:, None], EMPTY, lax.stop_gradient(largest))
        read, weight, _ = scaled(num, den, largest, k + u, v)
        return scaled(num, den, largest - w, k, v), read / weight

    by_time = tuple(z.swapaxes(0, 1) for z in (k.astype(dtype), v.astype(dtype), begins))
    state, y = jax.lax.scan(token, tuple(z.astype(dtype) for z in state), by_time)
    return y.swapaxes(0, 1).astype(v.dtype), Wkv4State(*state)
