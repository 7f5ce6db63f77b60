"""References: the recurrence over chunks, and the general delta rule token by token."""

import functools

import jax
import jax.numpy as jnp


def recurrence(x, read, write, mix, keep, *, initial_state=None):
    """The equation of `api.py`, in float64 for float64 inputs (under `jax.enable_x64`), else in float32.

    Differentiable to any order in forward and reverse mode; returns y and the last state.
    """
    dtype = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    (b, _, h, v), size = x.shape, mix.shape[3]
    matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    zeros = jnp.zeros((b, h, read.shape[3], v), dtype)

    def chunk(state, now):
        x, read, write, mix, keep = now
        y = matmul(mix, x + matmul(read, state))
        return keep[..., None] * state + matmul(write.mT, y), y

    tokens = [z.reshape(b, -1, size, h, z.shape[3]).swapaxes(2, 3) for z in (x, read, write)]
    chunks = [z.astype(dtype).swapaxes(0, 1) for z in (*tokens, mix, keep)]
    state, y = jax.lax.scan(chunk, zeros if initial_state is None else initial_state.astype(dtype), chunks)
    return y.transpose(1, 0, 3, 2, 4).reshape(x.shape).astype(x.dtype), state


def general_recurrence(q, k, v, u, z, log_decay, *, initial_state=None):
    """The equation of `general_api.py`, in float64 for float64 inputs (under `jax.enable_x64`), else in float32.

    Differentiable to any order in forward and reverse mode; returns y and the last state.
    """
    dtype = jnp.float64 if v.dtype == jnp.float64 else jnp.float32
    (b, _, h, width), einsum = v.shape, functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)

    def token(state, now):
        q, k, v, u, z, log_decay = now
        read = einsum("bhk,bhkv->bhv", u, state)
        state = jnp.exp(log_decay)[..., None] * state + z[..., None] * read[:, :, None]
        state = state + k[..., None] * v[:, :, None]
        return state, einsum("bhk,bhkv->bhv", q, state)

    tokens = [x.astype(dtype).swapaxes(0, 1) for x in (q, k, v, u, z, log_decay)]
    zeros = jnp.zeros((b, h, k.shape[3], width), dtype)
    state, y = jax.lax.scan(token, zeros if initial_state is None else initial_state.astype(dtype), tokens)
    return y.swapaxes(0, 1).astype(v.dtype), state
