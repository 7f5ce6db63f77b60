"""Sliding-window attention by cuDNN's flash attention, through `jax.nn.dot_product_attention`.

For the whole past, and for what the Hopper kernels do not serve: wide windows, float16, other NVIDIA GPUs. It is
differentiable by itself, so that the backward pass reuses what its forward pass saved.
"""

import functools

import jax
import jax.numpy as jnp

DTYPES = ("bfloat16", "float16")
TILE = 64
"""Tokens below which flash attention has nothing to save, and vendors test least."""


def attention(q, k, v, start, segment_ids, *, window: int, scale: float) -> jax.Array:
    """y (b, t, h, v); arguments as in `backends.py`, with t = s, and neither start nor segment_ids."""
    del start, segment_ids
    whole = window >= q.shape[1]
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        scale=scale,
        is_causal=True,
        local_window_size=None if whole else (window - 1, 0),
        implementation="cudnn",
    )


def objection(*, b: int, t: int, h: int, g: int, k: int, v: int, window: int, dtype: str) -> str | None:
    """Why cuDNN cannot serve a call without past tokens and segments, or None: JAX says, of the GPU that is present."""
    if dtype not in DTYPES:
        return f"dtype {dtype} is not one of {', '.join(DTYPES)}"
    if k != v:
        return f"head_dims {k} of keys and {v} of values differ"
    if t < TILE:
        return f"t={t} is less than {TILE} tokens"
    if jax.default_backend() != "gpu":
        return "asks the GPU that is present what it serves, and there is none"
    return _refusal(b, t, h, g, k, window, dtype)


@functools.cache
def _refusal(b, t, h, g, d, window, dtype) -> str | None:
    queries, keys = (jax.ShapeDtypeStruct((b, t, n, d), jnp.dtype(dtype)) for n in (h, g))

    def run(q, k, v):
        y, pull_back = jax.vjp(lambda q, k, v: attention(q, k, v, None, None, window=window, scale=1.0), q, k, v)
        return pull_back(y)

    try:
        jax.eval_shape(run, queries, keys, keys)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error)
    return None
