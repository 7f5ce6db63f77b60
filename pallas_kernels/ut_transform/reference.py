"""Reference of the UT transform, by substitution."""

import jax
import jax.numpy as jnp


def inverse(scores, beta=None):
    """(I + strict(Diag(beta) scores))^-1 Diag(beta), beta None: 1; in float64 for float64 inputs (under
    `jax.enable_x64`), else in float32. Differentiable to any order in forward and reverse mode."""
    c = scores.shape[-1]
    scores, dtype = _exact(scores), scores.dtype
    columns = jnp.ones(scores.shape[:4], scores.dtype)
    if beta is not None:
        columns = beta.astype(scores.dtype).reshape(scores.shape[0], -1, c, scores.shape[2]).swapaxes(2, 3)
    lower = jnp.tril(columns[..., None] * scores, -1)

    def row(i, found):
        known = (lower[..., i, :, None] * found).sum(-2)
        return found.at[..., i, :].add(-known)

    eye = jnp.broadcast_to(jnp.eye(c, dtype=scores.dtype)[None, None, None], scores.shape)
    rows = jax.lax.fori_loop(0, c, row, eye) if scores.size else eye
    return (rows * columns[..., None, :]).astype(dtype)


def transform(k, beta, log_decay, chunk: int):
    """mix, read, write and keep of `ut_transform`, token by token."""
    (b, t, h, _), dtype = k.shape, k.dtype

    def by_chunk(x):
        return x.reshape(b, -1, chunk, h, x.shape[3]).swapaxes(2, 3)

    keys = by_chunk(_exact(k))
    decays = jnp.ones_like(keys)
    if log_decay is not None:
        decays = jnp.broadcast_to(jnp.exp(by_chunk(log_decay.reshape(b, t, h, -1).astype(keys.dtype))), keys.shape)

    def token(carry, now):
        written, kept = carry
        key, decay, i = now
        written, kept = written * decay[..., None, :], kept * decay
        scores = (written * key[..., None, :]).sum(-1)
        return (written.at[..., i, :].set(key), kept), (scores, -kept * key)

    tokens = (*(jnp.moveaxis(x, 3, 0) for x in (keys, decays)), jnp.arange(chunk))
    start = jnp.zeros_like(keys), jnp.ones_like(keys[..., 0, :])
    (written, kept), (scores, read) = jax.lax.scan(token, start, tokens)
    mix = inverse(jnp.moveaxis(scores, 0, 3), beta)
    read, write = (x.swapaxes(2, 3).reshape(k.shape) for x in (jnp.moveaxis(read, 0, 3), written))
    return mix.astype(dtype), read.astype(dtype), write.astype(dtype), kept


def _exact(x):
    return x.astype(jnp.float64 if x.dtype == jnp.float64 else jnp.float32)
