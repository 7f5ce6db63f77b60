"""The recurrence over chunks as its definition, chunk by chunk."""

import functools

import jax
import jax.numpy as jnp


def recurrence(x, read, write, mix, keep, *, initial_state=None):
    """The equation of `api.py`, in float64 of float64 inputs (under `jax.enable_x64`), else in float32.

    Differentiable to any order and forwards too. Arguments as those of `delta_chunks`; returns y and the last state.
    """
    dtype = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    (b, _, h, v), k, size = x.shape, read.shape[3], mix.shape[3]
    state = jnp.zeros((b, h, k, v), dtype) if initial_state is None else initial_state.astype(dtype)
    matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    outputs = []
    for c in range(mix.shape[1]):
        tokens = slice(c * size, (c + 1) * size)
        x_c, read_c, write_c = (z[:, tokens].astype(dtype).swapaxes(1, 2) for z in (x, read, write))
        y = matmul(mix[:, c].astype(dtype), x_c + matmul(read_c, state))
        state = keep[:, c].astype(dtype)[..., None] * state + matmul(write_c.mT, y)
        outputs.append(y.swapaxes(1, 2))
    return jnp.concatenate([x[:, :0].astype(dtype), *outputs], axis=1).astype(x.dtype), state
