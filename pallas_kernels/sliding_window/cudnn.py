"""Sliding-window attention by cuDNN's flash attention, through `jax.nn.dot_product_attention`.

It serves full causal attention, and calls that the Hopper kernels do not: wide windows, float16, other NVIDIA GPUs.
`backward` repeats the forward pass with the same operands, which XLA merges in one program.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.sliding_window.problem import Problem

DTYPES = ("bfloat16", "float16")
TILE = 64
"""Minimum number of tokens."""


def forward(q, k, v, start, segment_ids, *, window: int, scale: float) -> tuple[jax.Array, jax.Array]:
    """y (b, t, h, v), lse (b, h, t); arguments: see `api.py`; t = s, no start, no segment_ids."""
    del start, segment_ids
    y, lse = _unpartitioned(functools.partial(_attention, window=window, scale=scale))(q, k, v)
    return y, lse.swapaxes(1, 2).astype(jnp.float32)


def backward(q, k, v, start, segment_ids, y, lse, dy, *, window: int, scale: float):
    """dq, dk, dv in the dtypes of q, k, v."""
    del start, segment_ids, y, lse

    def gradients(q, k, v, dy):
        (_, lse), pull_back = jax.vjp(functools.partial(_attention, window=window, scale=scale), q, k, v)
        return pull_back((dy, jnp.zeros_like(lse)))

    return _unpartitioned(gradients)(q, k, v, dy)


def _unpartitioned(function):
    """The function on one device: otherwise JAX partitions cuDNN's call over the program's devices."""
    if jax.sharding.get_abstract_mesh().manual_axes:
        return function
    one = jax.sharding.AbstractMesh((1,), ("device",))
    return jax.shard_map(function, mesh=one, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)


def _attention(q, k, v, *, window: int, scale: float):
    whole = window >= q.shape[1]
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        scale=scale,
        is_causal=True,
        local_window_size=None if whole else (window - 1, 0),
        implementation="cudnn",
        return_residual=True,
    )


def objection(p: Problem) -> str | None:
    """Why cuDNN cannot serve a call on any device, or None."""
    if p.past or p.start or p.segments:
        return "tokens before, as in a cache, or segment_ids"
    if p.dtype_name not in DTYPES:
        return f"dtype {p.dtype_name} is not one of {', '.join(DTYPES)}"
    if p.k != p.v:
        return f"head_dims {p.k} of keys and {p.v} of values differ"
    if p.t < TILE:
        return f"t={p.t} is less than {TILE} tokens"
    return None


def target_objection(p: Problem, device: Any) -> str | None:
    """Why it cannot serve a call on this device, or None; JAX decides for the GPU that is present."""
    if device is None:
        return "asks the GPU that it will run on what it serves, and that GPU is not known"
    return _refusal(p.b, p.t, p.h, p.kv_heads, p.k, p.window, p.dtype_name)


@functools.cache
def _refusal(b, t, h, g, d, window, dtype) -> str | None:
    queries, keys = (jax.ShapeDtypeStruct((b, t, n, d), jnp.dtype(dtype)) for n in (h, g))

    def run(q, k, v):
        y, lse = forward(q, k, v, None, None, window=window, scale=1.0)
        return backward(q, k, v, None, None, y, lse, y, window=window, scale=1.0)

    try:
        jax.eval_shape(run, queries, keys, keys)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error)
    return None
