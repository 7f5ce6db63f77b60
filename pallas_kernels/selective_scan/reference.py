"""The selective scan as its definition, token by token."""

import jax
import jax.numpy as jnp


def recurrence(x, delta, a, b, c, *, segment_ids=None, initial_state=None):
    """The equation of `api.py`, in float64 of float64 inputs (under `jax.enable_x64`), else in float32.

    Differentiable to any order and forwards too. Arguments and results as those of `selective_scan`.
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


def in_blocks(x, delta, a, b, c, *, initial_state=None, block=128):
    """`recurrence` whose gradients keep one state per block of tokens: for lengths of thousands."""
    t = x.shape[1]

    def cut(z):
        return z[:, : t - t % block].reshape(len(z), -1, block, *z.shape[2:]).swapaxes(0, 1)

    tokens, rest = (x, delta, b, c), t - t % block

    @jax.checkpoint
    def body(state, now):
        x, delta, b, c = now
        y, state = recurrence(x, delta, a, b, c, initial_state=state)
        return state, y

    state = jnp.zeros((len(x), *a.shape), x.dtype) if initial_state is None else initial_state
    state, y = jax.lax.scan(body, state, tuple(cut(z) for z in tokens))
    y = y.swapaxes(0, 1).reshape(len(x), rest, -1)
    state, last = body(state, tuple(z[:, rest:] for z in tokens))
    return jnp.concatenate([y, last], axis=1), state
