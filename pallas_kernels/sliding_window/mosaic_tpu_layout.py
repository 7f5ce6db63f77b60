"""Geometry of the TPU kernels of sliding-window attention: blocks, chunks and tiles of scores.

A grid step has a block of tokens of many heads. A chunk of 64 queries uses the chunks of keys at distance 0 (its own)
to `farthest` before it. Query i of a chunk sees key j of the chunk at distance m if

    0 <= i - j + 64 m < window.

A tile of scores has 64 rows, one per key, and 128 lanes, one per query of two heads. Unless window = 1 modulo 64, the
visible entries of the own and the farthest chunk are disjoint, so one tile holds both (folding).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.sliding_window.problem import Problem

LANES = 128
CHUNK = 64
STEP_LANES, STEP_BYTES = 1024, 2**19
"""Maximum lanes, and bytes of an operand, of a grid step: twenty such operands fit in VMEM."""


class Geometry(NamedTuple):
    """Static sizes of a call."""

    b: int
    t: int
    s: int
    h: int
    d: int
    heads: int
    """Heads of a grid step."""
    window: int
    block: int
    """Tokens of a grid step: at least the visible keys before a chunk."""
    scale: float

    @classmethod
    def of(cls, q, k, window: int, scale: float):
        b, t, h, d = q.shape
        heads = heads_of_step(h, d, window, q.dtype.name)
        assert heads is not None  # the objection
        return cls(b, t, k.shape[1], h, d, heads, window, block_of(window), scale)

    @property
    def past_blocks(self) -> int:
        return -(-(self.s - self.t) // self.block)

    @property
    def front(self) -> int:
        """Padding rows before the first key."""
        return self.past_blocks * self.block - (self.s - self.t)

    @property
    def query_blocks(self) -> int:
        return -(-self.t // self.block)

    @property
    def key_blocks(self) -> int:
        return self.past_blocks + self.query_blocks

    @property
    def chunks(self) -> int:
        """Number of chunks of a block."""
        return self.block // CHUNK

    @property
    def farthest(self) -> int:
        """Maximum distance of visible keys, in chunks."""
        return -(-(self.window - 1) // CHUNK)

    @property
    def folds(self) -> bool:
        return self.window <= CHUNK * self.farthest

    @property
    def beside(self) -> int:
        """Heads that share a tile of scores."""
        return 2 if self.heads % 2 == 0 else 1

    def stages(self, tiles: int) -> list[range]:
        """Ranges of head groups, each with at most `tiles` tiles in a block, or a single group."""
        count, part = self.heads // self.beside, max(1, tiles // (self.chunks * max(1, self.farthest)))
        return [range(i, min(i + part, count)) for i in range(0, count, part)]

    def queries(self) -> pl.BlockSpec:
        return self._tokens(lambda step: jnp.clip(step - self.past_blocks, 0, self.query_blocks - 1))

    def keys(self) -> pl.BlockSpec:
        return self._tokens(lambda step: jnp.minimum(step, self.key_blocks - 1))

    def keys_before(self) -> pl.BlockSpec:
        return self._tokens(lambda step: jnp.maximum(step - 1, 0))

    def per_query(self) -> pl.BlockSpec:
        """Block spec of a (b, h, t) array."""

        def of_step(step):
            return jnp.clip(step - self.past_blocks, 0, self.query_blocks - 1)

        return pl.BlockSpec((None, self.heads, self.block), lambda b, h, step: (b, h, of_step(step)))

    def _tokens(self, of_step) -> pl.BlockSpec:
        return pl.BlockSpec((None, self.block, self.heads * self.d), lambda b, h, step: (b, of_step(step), h))

    def chunks_before(self, dtype):
        """Scratch for the visible keys or values before a block."""
        return pltpu.VMEM((max(1, self.farthest) * CHUNK, self.heads * self.d), dtype)

    def block_before(self):
        """Scratch for sums of the previous block."""
        return pltpu.VMEM((self.block, self.heads * self.d), jnp.float32)

    def per_query_struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.b, self.h, self.query_blocks * self.block), jnp.float32)

    def packed(self, x, front: int = 0):
        """(b, n, h, d) -> (b, whole blocks, h d), after `front` rows of padding."""
        rows = front + x.shape[1]
        x = x.reshape(*x.shape[:2], -1)
        return x if rows % self.block == 0 and not front else jnp.pad(x, ((0, 0), (front, -rows % self.block), (0, 0)))

    def first(self, start):
        """First visible key of each row, (b,) int32, counted from the padding."""
        start = jnp.zeros((self.b,), jnp.int32) if start is None else jnp.maximum(start.astype(jnp.int32), 0)
        return start + self.front


def block_of(window: int) -> int:
    return LANES if window <= LANES + 1 else 2 * LANES


def heads_of_step(h: int, d: int, window: int, dtype: str) -> int | None:
    """Heads of a grid step: all, or a multiple of 8 that divides them and fills the lanes; None: impossible."""
    lanes = min(STEP_LANES, STEP_BYTES // (block_of(window) * jnp.dtype(dtype).itemsize))
    if h * d <= lanes:
        return h
    return next((n for n in range(lanes // d // 8 * 8, 0, -8) if h % n == 0 and n * d % LANES == 0), None)


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    if p.dtype_name not in ("bfloat16", "float32"):
        return f"dtype {p.dtype_name} is not bfloat16 or float32"
    if p.k != p.v or p.k % 8 or not 8 <= p.k <= 128:
        return f"head_dims {p.k} of keys and {p.v} of values are not one multiple of 8 up to 128"
    if p.kv_heads != p.h:
        return f"{p.kv_heads} key/value heads are fewer than {p.h} query heads"
    if p.window > 2 * LANES:
        return f"window={p.window} is more than {2 * LANES}"
    if p.segments:
        return "segment_ids"
    fits = heads_of_step(p.h, p.k, p.window, p.dtype_name)
    return None if fits else f"{p.h} heads are too many for a step, and not in eights"
