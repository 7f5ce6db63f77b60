"""Sliding-window attention in plain XLA: blocks of queries, and a backward pass that recomputes the weights.

A block of c queries, about half a window and at most 128, uses its own keys and the `back` keys before it, the least
multiple of c that is at least window - 1: scores are (c, back + c) per block, O(t w) in total. A loop over time
processes a few blocks per step, whose scores fit in a CPU cache.

Backward, the loop runs from the end and carries, in float32, the gradients of later blocks for earlier keys. The
residuals are the inputs, y and lse.

If one block holds all tokens and none leaves the window, a CPU cuts the queries into parts, each with the keys up to
its own end.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.softmax import softmax_attention, softmax_attention_gradients

MIN_BLOCK, MAX_BLOCK = 16, 128
"""Queries of a block: smaller matmuls are dominated by overhead, larger ones have more masked keys."""
WHOLE_BYTES, WHOLE_LENGTH = 2**25, 512
"""Limits of scores or tokens for a single block."""
STEP_BYTES = 2**19
"""Bytes of the scores of one step of the loop, unless one block has more."""

MIN_PART, MAX_PARTS = 64, 8
"""Minimum queries of a part but the last, and maximum number of parts."""


def forward(q, k, v, start, segment_ids, *, window: int, scale: float) -> tuple[jax.Array, jax.Array]:
    """y (b, t, h, v) in the dtype of v, lse (b, h, t); arguments: see `api.py`."""
    whole = functools.partial(_forward, window=window, scale=scale)
    parts = _parts(q, k, window)

    def in_parts(q, k, v, start, segment_ids):
        y, lse = zip(
            *(whole(q[:, a:b], k[:, :b], v[:, :b], start, _before(segment_ids, b)) for a, b in parts),
            strict=True,
        )
        return jnp.concatenate(y, axis=1), jnp.concatenate(lse, axis=2)

    if len(parts) == 1:
        return whole(q, k, v, start, segment_ids)
    return lax.platform_dependent(q, k, v, start, segment_ids, cpu=in_parts, default=whole)


def backward(q, k, v, start, segment_ids, y, lse, dy, *, window: int, scale: float):
    """dq, dk, dv in the dtypes of q, k, v; y and lse from `forward`."""
    whole = functools.partial(_backward, window=window, scale=scale)
    parts = _parts(q, k, window)

    def in_parts(q, k, v, start, segment_ids, y, lse, dy):
        dq = []
        dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in (k, v))
        for a, b in parts:
            of_queries = (y[:, a:b], lse[:, :, a:b], dy[:, a:b])
            keys = (k[:, :b], v[:, :b], start, _before(segment_ids, b))
            dq_, dk_, dv_ = whole(q[:, a:b], *keys, *of_queries, key_dtype=jnp.float32)
            dq.append(dq_)
            dk, dv = dk.at[:, :b].add(dk_), dv.at[:, :b].add(dv_)
        return jnp.concatenate(dq, axis=1), dk.astype(k.dtype), dv.astype(v.dtype)

    operands = (q, k, v, start, segment_ids, y, lse, dy)
    if len(parts) == 1:
        return whole(*operands)
    return lax.platform_dependent(*operands, cpu=in_parts, default=whole)


def _parts(q, k, window: int) -> list[tuple[int, int]]:
    """Ranges (first query, end) of the parts on a CPU; a single part: no cut."""
    b, t, h, _ = q.shape
    alone = k.shape[1] == t <= window and _blocks(t, 0, window, b * h) == (t, 0)
    size = max(MIN_PART, -(-t // MAX_PARTS)) if alone else t
    return [(first, min(first + size, t)) for first in range(0, t, size)]


def _before(segment_ids, end: int):
    return None if segment_ids is None else segment_ids[:, :end]


def _forward(q, k, v, start, segment_ids, *, window: int, scale: float) -> tuple[jax.Array, jax.Array]:
    blocks = _BlockedWindow(q, k, start, segment_ids, window)
    q, k, v = blocks.pad_queries(q), blocks.pad_keys(k), blocks.pad_keys(v)

    def body(carry, first, n):
        y, lse = softmax_attention(
            blocks.queries(q, first, n), blocks.keys(k, first, n), blocks.keys(v, first, n),
            visible=blocks.visible(first, n), scale=scale,
        )  # fmt: skip
        return tuple(blocks.write(out, x, first) for out, x in zip(carry, (y, lse[..., None]), strict=True))

    y = jnp.zeros((*q.shape[:3], v.shape[3]), v.dtype)
    y, lse = blocks.scan(body, (y, jnp.zeros((*q.shape[:3], 1), jnp.float32)))
    return y[:, : blocks.t], lse[:, : blocks.t, :, 0].swapaxes(1, 2)


def _backward(q, k, v, start, segment_ids, y, lse, dy, *, window: int, scale: float, key_dtype=None):
    """Gradients; dk and dv in `key_dtype`, None: the dtypes of k and v."""
    blocks = _BlockedWindow(q, k, start, segment_ids, window)
    s = k.shape[1]
    q, y, dy, lse = (blocks.pad_queries(x) for x in (q, y, dy, lse.swapaxes(1, 2)[..., None]))
    k, v = blocks.pad_keys(k), blocks.pad_keys(v)

    def body(carry, first, n):
        dq, dk, dv, dk_before, dv_before = carry
        q_, y_, dy_, lse_ = (blocks.queries(x, first, n) for x in (q, y, dy, lse))
        dq_, dk_, dv_ = softmax_attention_gradients(
            q_, blocks.keys(k, first, n), blocks.keys(v, first, n), y_, lse_[..., 0], dy_,
            visible=blocks.visible(first, n), scale=scale,
        )  # fmt: skip
        dq = blocks.write(dq, dq_, first)
        dk, dk_before = blocks.write_keys(dk, dk_, dk_before, first)
        dv, dv_before = blocks.write_keys(dv, dv_, dv_before, first)
        return dq, dk, dv, dk_before, dv_before

    before = (jnp.zeros((x.shape[0], blocks.back, *x.shape[2:]), jnp.float32) for x in (k, v))
    zeros = (jnp.zeros_like(x[:, blocks.back :], dtype=key_dtype) for x in (k, v))
    dq, dk, dv, *before = blocks.scan(body, (jnp.zeros_like(q), *zeros, *before), reverse=True)
    if blocks.past:
        dk, dv = (
            jnp.concatenate([first[:, blocks.back - blocks.past :].astype(x.dtype), x], axis=1)
            for first, x in zip(before, (dk, dv), strict=True)
        )
    return dq[:, : blocks.t], dk[:, :s], dv[:, :s]


def keys_per_query(length: int, window: int) -> float:
    """Computed scores per query, row and head at t = length without a cache, including masked ones.

    A CPU may compute fewer, if a single block is cut into parts.
    """
    block, back = _blocks(length, 0, window, 1)
    return -(-length // block) * block * (back + block) / length


def _blocks(t: int, past: int, window: int, heads: int) -> tuple[int, int]:
    """Queries of a block and keys before it; a single block if several would cost as much, unless the scores of the
    `heads` of all rows are too many."""
    block = min(max(MIN_BLOCK, -(-window // 2)), MAX_BLOCK)
    back = -(-(window - 1) // block) * block
    small = t <= WHOLE_LENGTH or 4 * heads * t * (past + t) <= WHOLE_BYTES
    return (t, past) if t <= back + block and small else (block, back)


class _BlockedWindow:
    """Queries and keys of a call, cut into blocks.

    Padded queries are (b, blocks * block, ...), padded keys (b, back + blocks * block, ...): the block that starts at
    query `first` uses the padded keys from `first` on. A step of n blocks has queries (b, g, n, r, c, .), r query heads
    per key head, and keys (b, g, n, back + c, .).
    """

    def __init__(self, q, k, start, segment_ids, window):
        b, self.t, h, _ = q.shape
        self.g, self.past, self.window = k.shape[2], k.shape[1] - self.t, window
        self.block, self.back = _blocks(self.t, self.past, window, b * h)
        self.n_blocks = -(-self.t // self.block)
        scores = 4 * b * h * self.block * (self.back + self.block)
        self.group = min(self.n_blocks, max(1, STEP_BYTES // max(scores, 1)))
        self.start = jnp.zeros((1,), jnp.int32) if start is None else start
        self.segment_ids = None if segment_ids is None else self.pad_keys(segment_ids)

    def pad_queries(self, x):
        return _pad(x, 0, self.n_blocks * self.block - self.t)

    def pad_keys(self, x):
        return _pad(x, self.back - self.past, self.n_blocks * self.block - self.t)

    def queries(self, x, first, n):
        b, _, h, d = x.shape
        x = lax.dynamic_slice_in_dim(x, first, n * self.block, axis=1)
        return x.reshape(b, n, self.block, self.g, h // self.g, d).transpose(0, 3, 1, 4, 2, 5)

    def keys(self, x, first, n):
        return self._spread(lax.dynamic_slice_in_dim(x, first, self.back + n * self.block, axis=1))

    def write(self, out, x, first):
        """Writes the outputs of a step, shaped like its queries."""
        b, g, n, r, c, d = x.shape
        x = x.transpose(0, 2, 4, 1, 3, 5).reshape(b, n * c, g * r, d)
        return lax.dynamic_update_slice_in_dim(out, x.astype(out.dtype), first, axis=1)

    def write_keys(self, out, x, before, first):
        """Writes cotangents of a step's keys, adding `before` of the next step; returns those of earlier keys."""
        size = x.shape[2] * self.block
        flat = jax.ShapeDtypeStruct((x.shape[0], self.back + size, self.g, x.shape[4]), x.dtype)
        (x,) = jax.linear_transpose(self._spread, flat)(x)
        x = x.at[:, size:].add(before)
        out = lax.dynamic_update_slice_in_dim(out, x[:, self.back :].astype(out.dtype), first, axis=1)
        return out, x[:, : self.back]

    def visible(self, first, n):
        """Mask of visible keys of a step, (b or 1, 1, n, 1, block, back + block)."""
        block, back = self.block, self.back
        # Iotas: constants of a single block of all tokens would have t t numbers.
        key = jnp.arange(back + block, dtype=jnp.int32)[None, :]
        distance = jnp.arange(block, dtype=jnp.int32)[:, None] + back - key
        in_window = (distance >= 0) & (distance < self.window)
        index = first - (back - self.past) + jnp.arange(n, dtype=jnp.int32)[:, None] * block + key
        exists = index[None] >= jnp.maximum(self.start, 0)[:, None, None]
        seen = in_window[None, None] & exists[:, :, None, :]
        if self.segment_ids is not None:
            of_keys = self.keys(self.segment_ids[:, :, None, None], first, n)[:, 0, ..., 0]
            seen = seen & (of_keys[:, :, back:, None] == of_keys[:, :, None, :])
        return seen[:, None, :, None]

    def scan(self, body, carry, *, reverse: bool = False):
        """Folds `body(carry, first query, blocks)` over steps of `group` blocks, and a shorter last step."""
        steps, rest = divmod(self.n_blocks, self.group)
        size = self.group * self.block

        def whole(carry):
            def step(carry, i):
                return (body(carry, i * size, self.group), None)

            return lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32), reverse=reverse)[0]

        parts = [whole if steps > 1 else lambda carry: body(carry, 0, self.group)]
        if rest:
            parts.append(lambda carry: body(carry, steps * size, rest))
        for part in reversed(parts) if reverse else parts:
            carry = part(carry)
        return carry

    def _spread(self, x):
        """(b, back + n * block, g, d) -> keys of each block, (b, g, n, back + block, d)."""
        b, length, g, d = x.shape
        n = (length - self.back) // self.block
        x = x.transpose(0, 2, 1, 3)
        if n == 1:
            return x[:, :, None]
        x = x.reshape(b, g, -1, self.block, d)
        return jnp.concatenate([x[:, :, i : i + n] for i in range(self.back // self.block + 1)], axis=3)


def _pad(x, front, end):
    return jnp.pad(x, ((0, 0), (front, end), *[(0, 0)] * (x.ndim - 2)))
