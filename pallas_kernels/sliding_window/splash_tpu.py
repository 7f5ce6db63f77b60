"""Sliding-window attention on TPUs by JAX's own splash attention, whose blocks outside of a local mask are not visited.

Splash attention takes lengths that are whole blocks and scores without a factor. So q is scaled, in its own dtype,
and sequences are padded: at their ends, where causality hides the padding, and, for keys before the first query, at
their front, where segment ids hide it and keys that do not exist. The backward pass runs the forward kernel again,
because splash attention keeps its residuals to itself.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

BLOCK = 256
"""Queries and keys of a block, where a sequence has as many. Not tuned: none of the sizes was timed on a device."""
LANES = 128
"""Blocks are multiples of a register's lanes."""
MASKED = -1.0e30
"""Score of a key that a query does not see: finite, and less than any that is seen."""


def forward(q, k, v, start, segment_ids, *, window: int, scale: float, interpret: bool = False):
    """y (b, t, h, v) in the dtype of v, lse (b, h, t); arguments as in `backends.py`."""
    kernel = functools.partial(_run, start=start, segment_ids=segment_ids, window=window, interpret=interpret)
    y, lse = kernel(_scaled(q, scale), k, v, residuals=True)
    t = q.shape[1]
    return y[:, :, :t].swapaxes(1, 2), lse[:, :, :t]  # type: ignore[index]


def backward(q, k, v, start, segment_ids, y, lse, dy, *, window: int, scale: float, interpret: bool = False):
    """dq, dk, dv in the dtypes of q, k, v."""
    del y, lse

    def run(q, k, v):
        kernel = functools.partial(_run, start=start, segment_ids=segment_ids, window=window, interpret=interpret)
        y, _ = kernel(_scaled(q, scale), k, v, residuals=False)
        return y[:, :, : q.shape[1]].swapaxes(1, 2)

    return jax.vjp(run, q, k, v)[1](dy)


def _run(q, k, v, *, start, segment_ids, window: int, interpret: bool, residuals: bool):
    """The kernel on padded sequences: y (b, h, padded t, v), and lse where residuals are asked for, else None."""
    (b, t, h, _), s = q.shape, k.shape[1]
    block = min(BLOCK, _up(t, LANES))
    length, before = _up(t, block), _up(s - t, block)
    q = _heads_first(q, 0, length - t)
    k, v = (_heads_first(x, before - (s - t), length - t) for x in (k, v))
    mask = masks.LocalMask((length, before + length), (window - 1, 0), offset=before)
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * h), block_sizes=_block_sizes(block), mask_value=MASKED,
        save_residuals=residuals, interpret=interpret,
    )  # fmt: skip
    ids = _segments(b, t, s, length, before, start, segment_ids)
    out: Any = jax.vmap(kernel)(q, k, v) if ids is None else jax.vmap(kernel)(q, k, v, ids)
    return (out[0], out[1][0]) if residuals else (out, None)


def _segments(b: int, t: int, s: int, length: int, before: int, start, segment_ids):
    """Ids that keep queries from keys of other segments and from those that do not exist, or None."""
    if segment_ids is not None:
        ids = jnp.pad(segment_ids, ((0, 0), (0, length - t)), mode="edge")
        return splash.SegmentIds(q=ids, kv=ids)
    if s == t:
        return None
    first = jnp.zeros((b,), jnp.int32) if start is None else start
    place = jnp.arange(before + length, dtype=jnp.int32) - (before - (s - t))
    hidden = place[None, :] < first[:, None]
    return splash.SegmentIds(q=jnp.zeros((b, length), jnp.int32), kv=-hidden.astype(jnp.int32))


def _block_sizes(block: int) -> splash.BlockSizes:
    return splash.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block, block_kv_dkv=block,
        block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block,
    )  # fmt: skip


def _scaled(q, scale: float):
    return (q.astype(jnp.float32) * scale).astype(q.dtype)


def _heads_first(x, front: int, end: int):
    return jnp.pad(x, ((0, 0), (front, end), (0, 0), (0, 0))).swapaxes(1, 2)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
