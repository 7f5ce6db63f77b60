"""Causal softmax attention, optionally over a window of w tokens (the token itself and w - 1 before it)."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

WHOLE = 512


def jax_attention(platform: str, window: int | None = None) -> Callable:
    """`jax.nn.dot_product_attention`, by cuDNN on a GPU; q (b, t, h, d), k, v (b, t, g, d) -> (b, t, h, d)."""

    def attend(q, k, v):
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, local_window_size=None if window is None else (window - 1, 0),
            implementation="cudnn" if platform == "gpu" else "xla",
        )  # fmt: skip

    return attend


def truth(q, k, v, *, window: int | None = None, scale: float | None = None):
    """Softmax attention in the dtype of q, in blocks of queries: (block, t) scores, also in the backward pass."""
    t, dim = q.shape[1], q.shape[3]
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    block = t if t <= WHOLE else math.gcd(t, WHOLE // 2)
    factor = jnp.asarray(dim**-0.5 if scale is None else scale, q.dtype)

    @jax.checkpoint
    def rows(start):
        queries = jax.lax.dynamic_slice_in_dim(q, start, block, axis=1)
        scores = factor * jnp.einsum("bihd,bjhd->bhij", queries, k, precision="highest")
        distance = start + jnp.arange(block)[:, None] - jnp.arange(t)[None, :]
        seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
        weights = jax.nn.softmax(jnp.where(seen[None, None], scores, -jnp.inf), axis=-1)
        return jnp.einsum("bhij,bjhv->bihv", weights, v, precision="highest")

    y = jax.lax.map(rows, jnp.arange(0, t, block))
    return jnp.moveaxis(y, 0, 1).reshape(*q.shape[:3], v.shape[3])
