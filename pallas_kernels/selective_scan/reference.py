"""Reference of the selective scan, token by token."""

import jax
import jax.numpy as jnp


def recurrence(x, delta, a, b, c, *, segment_ids=None, initial_state=None):
    """The equation of `api.py`, in float64 for float64 inputs (under `jax.enable_x64`), else in float32.

    Differentiable to any order in forward and reverse mode. Arguments and results: see `selective_scan`.
    """
    dtype = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    rows, _, channels = x.shape
    keep = jnp.ones(x.shape[:2], dtype)
    if segment_ids is not None:
        keep = (jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) == 0).astype(dtype)
    state = jnp.zeros((rows, channels, a.shape[1]), dtype) if initial_state is None else initial_state.astype(dtype)
    rates = a.astype(dtype)[None]

    def token(state, now):
        x, delta, b, c, keep = now
        kept = keep[:, None, None] * jnp.exp(delta[:, :, None] * rates)
        state = kept * state + (delta * x)[:, :, None] * b[:, None]
        return state, (state * c[:, None]).sum(2)

    by_time = tuple(z.astype(dtype).swapaxes(0, 1) for z in (x, delta, b, c, keep))
    state, y = jax.lax.scan(token, state, by_time)
    return y.swapaxes(0, 1).astype(x.dtype), state
