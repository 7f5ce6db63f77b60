"""The UT transform in plain XLA: products of keys and a batched triangular solve, in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.gated_linear_attention.decayed_scores import decayed_scores, sums_to_borders
from pallas_kernels.xla_chunks import precision_of, product


def forward(x, beta, log_decay, chunk: int):
    """Forward pass (contract in `api.py`); differentiable."""
    if x.ndim == 5:
        return inverse(x.astype(jnp.float32), beta, x.dtype), None, None, None
    b, t, h, width = x.shape
    keys = _by_chunk(x.astype(jnp.float32), chunk)
    decay = None if log_decay is None else _by_chunk(log_decay.reshape(b, t, h, -1), chunk)
    mix = inverse(_scores(keys, decay, precision_of(x.dtype)).reshape(b, -1, h, chunk, chunk), beta, x.dtype)

    def tokens(z):
        return z.astype(x.dtype).reshape(b, -1, h, chunk, width).swapaxes(2, 3).reshape(x.shape)

    if decay is None:
        return mix, -x, None, None
    since, until = (jnp.exp(z) for z in sums_to_borders(decay))
    keep = jnp.broadcast_to(since[:, :, -1].reshape(b, -1, h, decay.shape[3]), (b, t // chunk, h, width))
    return mix, tokens(-since * keys), tokens(until * keys), keep


@functools.partial(jax.checkpoint, static_argnums=(2,))
def _scores(keys, decay, precision):
    """Decayed products of keys (b n, h, c, k)."""
    return decayed_scores(keys, keys, decay, precision=precision)


def inverse(scores: jax.Array, beta: jax.Array | None, dtype) -> jax.Array:
    """(I + strict(Diag(beta) scores))^-1 Diag(beta) in dtype, from float32 scores (b, n, h, c, c), beta (b, t, h)."""
    c = scores.shape[4]
    columns = jnp.ones((1, 1, 1, 1, c), jnp.float32)
    if beta is not None:
        columns = beta.reshape(len(beta), -1, c, beta.shape[2]).swapaxes(2, 3)[..., None, :]
    lower = jnp.where(np.tri(c, k=-1, dtype=bool)[None, None, None], scores * columns.swapaxes(3, 4), 0.0)
    return mix(dtype, lower, columns)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def mix(dtype, strict: jax.Array, beta: jax.Array) -> jax.Array:
    """T Diag(beta) in dtype, with T = (I + strict)^-1, from float32 strict (b, n, h, c, c) and beta (.., 1, c)."""
    return _mix_forward(dtype, strict, beta)[0]


def _mix_forward(dtype, strict, beta):
    # Transposed, for the column-major solver of GPUs.
    eye = jnp.broadcast_to(jnp.eye(strict.shape[4], dtype=strict.dtype), strict.shape)
    upper = strict.swapaxes(3, 4)
    found = lax.linalg.triangular_solve(upper, eye, left_side=True, lower=False, unit_diagonal=True).swapaxes(3, 4)
    return (found * beta).astype(dtype), (found.astype(dtype), beta)


def _mix_backward(dtype, kept, cotangent):
    """`d strict = -T^T dT T^T` with `dT = cotangent Diag(beta)`."""
    found, beta = kept
    found, cotangent = found.astype(jnp.float32), cotangent.astype(jnp.float32)
    half = product("bnhji,bnhjk->bnhik", found, cotangent * beta, precision=precision_of(dtype))
    d_strict = -product("bnhij,bnhkj->bnhik", half, found, precision=precision_of(dtype))
    dbeta = (found * cotangent).sum(3, keepdims=True)
    return d_strict, dbeta if beta.shape[:3] == dbeta.shape[:3] else jnp.zeros_like(beta)


mix.defvjp(_mix_forward, _mix_backward)


def backward(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys, *, chunk: int):
    """Backward pass (contract in `api.py`)."""
    outputs, pull_back = jax.vjp(lambda *arrays: forward(*arrays, chunk=chunk), x, beta, log_decay)
    given = [None if like is None else z for like, z in zip(outputs, (dmix, dread, dwrite, dkeep), strict=True)]
    dx, dbeta, dlog_decay = pull_back(tuple(given))
    others = [z.astype(jnp.float32) for z in (dkeys, dwrite if outputs[2] is None else None) if z is not None]
    return sum(others, dx.astype(jnp.float32)).astype(x.dtype), dbeta, dlog_decay


def _by_chunk(x, chunk: int):
    """(b, t, h, .) -> (b n, h, c, .)."""
    return x.reshape(-1, chunk, *x.shape[2:]).swapaxes(1, 2)
