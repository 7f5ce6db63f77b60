"""Geometry of the TPU kernels: heads, packs of heads and chunks of a grid step, and their arrays.

Heads are packed on the last axis, (b, t, heads * width), as in the results of projections. A grid step (b, step, block)
processes `heads` heads of values with their `key_heads` of q and k, and the chunks of its block in order. A pack is as
many heads as fill whole tiles of lanes (2 for a width of 64); its state is one matrix (keys, values), block diagonal if
its heads have their own q and k.

Decays enter as base-2 logarithms, summed from the start of each chunk, time on the lanes.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.gated_linear_attention.problem import Problem
from pallas_kernels.tpu.lanes import LANES, Specs, call_by_name

CHUNK = 128
"""Tokens of a chunk; with decays per channel, tokens times heads of a pack."""
BLOCK = 512
"""Maximum tokens of a grid step; the forward pass saves the states between steps."""
MAX_HEADS, MAX_CHANNEL_PACKS = 8, 4
BLOCK_BYTES = 16 * 2**20
"""Maximum bytes of a grid step's q, k, v, dy, dq, dk, dv, decays per channel and their gradients, double-buffered."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Static sizes of a call."""

    b: int
    t: int
    h: int
    g: int
    k: int
    v: int
    dtype: jnp.dtype
    heads: int
    """Value heads of a grid step."""
    pack: int
    chunk: int
    chunks: int
    """Chunks of a grid step."""
    channel: bool
    """Whether decays are per channel; states are then transposed."""

    @property
    def shared(self) -> bool:
        """Whether the heads of a pack share q and k."""
        return self.h > self.g

    @property
    def key_heads(self) -> int:
        """Heads of q and k in a grid step."""
        return max(1, self.heads * self.g // self.h)

    @property
    def steps(self) -> int:
        return self.h // self.heads

    @property
    def packs(self) -> int:
        return self.heads // self.pack

    @property
    def block(self) -> int:
        return self.chunk * self.chunks

    @property
    def n_blocks(self) -> int:
        return pl.cdiv(self.t, self.block)

    @property
    def state(self) -> tuple[int, int]:
        """Shape of a pack's state: (keys, values), transposed with decays per channel."""
        keys, values = (self.k if self.shared else self.pack * self.k), self.pack * self.v
        return (values, keys) if self.channel else (keys, values)

    @property
    def saved(self) -> tuple[int, int, int]:
        """Number and shape of the states that a grid step saves: one before the block; with decays per channel, where
        recomputing takes longer than the bytes, one before each chunk, without the zeros."""
        return (self.chunks, self.v, self.pack * self.k) if self.channel else (1, *self.state)

    def key_lanes(self, pack: int) -> slice:
        """Lanes of q and k of a pack."""
        width = self.k if self.shared else self.pack * self.k
        first = pack * self.pack * self.g // self.h * self.k if self.shared else pack * width
        return slice(first, first + width)

    def value_lanes(self, pack: int) -> slice:
        width = self.pack * self.v
        return slice(pack * width, (pack + 1) * width)


def _heads(h: int, g: int, k: int, v: int) -> tuple[int, int] | None:
    """Heads of a grid step and of a pack, or None if they do not fill tiles."""
    group = h // g
    for heads in range(min(h, MAX_HEADS), 0, -1):
        if h % heads or (group % heads and heads % group):
            continue
        key_heads = max(1, heads // group)
        if key_heads * k % LANES and key_heads != g:
            continue
        for pack in (1, 2):
            whole = pack * v % LANES == 0 and (group > 1 or pack * k % LANES == 0)
            if heads % pack == 0 and whole and (group == 1 or group % pack == 0):
                return heads, pack
    return None


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    if p.channel and p.kv_heads != p.h:
        return f"decays per channel need as many heads of q and k ({p.kv_heads}) as of v ({p.h})"
    if p.dtype_name not in ("bfloat16", "float32"):
        return f"dtype={p.dtype_name} is neither bfloat16 nor float32"
    if p.k % 64 or p.v % 64 or max(p.k, p.v) > 512:
        return f"key and value widths {p.k}, {p.v} are not multiples of 64 up to 512"
    if _heads(p.h, p.kv_heads, p.k, p.v) is None:
        return f"{p.h} heads of {p.k} keys and {p.v} values, {p.kv_heads} of q and k, do not fill tiles of {LANES}"
    return None


def make_geometry(q, v, *, chunk: int | None = None, channel: bool = False) -> Geometry:
    """Geometry for q (b, t, g, k) and v (b, t, h, v)."""
    (b, t, h, v_dim), (g, k_dim) = v.shape, q.shape[2:]
    found = _heads(h, g, k_dim, v_dim)
    assert found is not None
    heads, pack = found
    if channel:  # packs are unrolled, and their program is several times as long as with scalar decays
        heads = max(n for n in range(pack, MAX_CHANNEL_PACKS * pack + 1, pack) if heads % n == 0)
    chunk = chunk or (CHUNK // pack if channel else CHUNK)
    token_bytes = 2 * heads * (v.dtype.itemsize * (4 * k_dim + 3 * v_dim) + 8 * k_dim * channel)
    most = max(min(BLOCK, BLOCK_BYTES // token_bytes) // chunk, 1)
    return Geometry(
        b=b, t=t, h=h, g=g, k=k_dim, v=v_dim, dtype=jnp.dtype(v.dtype), heads=heads, pack=pack, chunk=chunk,
        chunks=_chunks_of_block(pl.cdiv(t, chunk), most), channel=channel,
    )  # fmt: skip


def _chunks_of_block(chunks: int, most: int) -> int:
    """Chunks of a grid step: a divisor of all chunks, to avoid padding, unless it is small."""
    even = max(n for n in range(1, most + 1) if chunks % n == 0)
    return even if 2 * even >= min(most, chunks) else pl.cdiv(chunks, pl.cdiv(chunks, most))


def border_shape(p: Problem) -> tuple[int, ...]:
    """Shape of the saved states: (b, packs of all heads, blocks or chunks, keys, values), or (.., values, keys)."""
    q, v = (jax.ShapeDtypeStruct((p.b, p.t, n, width), p.dtype) for n, width in ((p.kv_heads, p.k), (p.h, p.v)))
    g = make_geometry(q, v, channel=p.channel)
    return (g.b, g.steps * g.packs, g.n_blocks * g.saved[0], *g.saved[1:])


class Arrays:
    """Operands of kernels on the grid (b, step, block), and their specs; `backwards` visits the last block first."""

    def __init__(self, geometry: Geometry, *, backwards: bool = False):
        self.geometry = geometry
        last = geometry.n_blocks - 1
        self.block_id = (lambda n: last - n) if backwards else (lambda n: n)

    def _lanes(self, width: int, step) -> pl.BlockSpec:
        return pl.BlockSpec((1, self.geometry.block, width), lambda b, s, n: (b, self.block_id(n), step(s)))

    def keys(self, x) -> tuple[jax.Array, pl.BlockSpec]:
        """q, k or decays per channel (b, t, g, k)."""
        g = self.geometry
        sharing = max(1, g.h // (g.g * g.heads))  # grid steps that read one head
        return self._padded(x), self._lanes(g.key_heads * g.k, lambda s: lax.div(s, jnp.int32(sharing)))

    def key_gradients(self, dtype=None) -> tuple[jax.ShapeDtypeStruct, pl.BlockSpec]:
        """Gradients of the keys, a part per grid step; float32 if parts are added up."""
        g = self.geometry
        width = g.key_heads * g.k
        dtype = dtype or (g.dtype if g.steps * g.key_heads == g.g else jnp.float32)
        shape = jax.ShapeDtypeStruct((g.b, g.n_blocks * g.block, g.steps * width), dtype)
        return shape, self._lanes(width, lambda s: s)

    def values(self, x=None) -> tuple[Any, pl.BlockSpec]:
        """v or dy (b, t, h, v); None: an output like it."""
        g = self.geometry
        shape = (g.b, g.n_blocks * g.block, g.h * g.v)
        x = jax.ShapeDtypeStruct(shape, g.dtype) if x is None else self._padded(x)
        return x, self._lanes(g.heads * g.v, lambda s: s)

    def decays(self, x=None) -> tuple[Any, pl.BlockSpec]:
        """(b, t', h) float32 numbers per token and head; None: an output like it."""
        g = self.geometry
        shape = (g.b, g.steps, g.heads, g.n_blocks * g.block)
        x = jax.ShapeDtypeStruct(shape, jnp.float32) if x is None else x.swapaxes(1, 2).reshape(shape)
        return x, pl.BlockSpec((1, 1, g.heads, g.block), lambda b, s, n: (b, s, 0, self.block_id(n)))

    def state(self, x=None) -> tuple[Any, pl.BlockSpec]:
        """(b, h, k, v), as the kernels keep it; None: an output like it."""
        g = self.geometry
        shape = (g.b, g.steps * g.packs, *g.state)
        x = jax.ShapeDtypeStruct(shape, jnp.float32) if x is None else _packed(x, g)
        return x, pl.BlockSpec((1, g.packs, *g.state), lambda b, s, n: (b, s, 0, 0))

    def borders(self, x=None) -> tuple[Any, pl.BlockSpec]:
        """The states that are saved, rounded as matmuls read them; None: an output like it."""
        g, (saves, *shape) = self.geometry, self.geometry.saved
        if x is None:
            x = jax.ShapeDtypeStruct((g.b, g.steps * g.packs, g.n_blocks * saves, *shape), g.dtype)
        return x, pl.BlockSpec((1, g.packs, saves, *shape), lambda b, s, n: (b, s, self.block_id(n), 0, 0))

    def _padded(self, x):
        """(b, t, heads, width) -> (b, t', heads * width), padded with zeros."""
        g = self.geometry
        x = x.reshape(*x.shape[:2], -1)
        return jnp.pad(x, ((0, 0), (0, g.n_blocks * g.block - g.t), (0, 0)))


def _packed(state, g: Geometry):
    """(b, h, k, v) float32 -> (b, packs, *g.state)."""
    state = state.reshape(g.b, -1, g.pack, g.k, g.v).astype(jnp.float32)
    state = state.swapaxes(3, 4) if g.channel else state
    if g.shared or g.pack == 1:
        return state.swapaxes(2, 3).reshape(g.b, -1, *g.state)
    own = jnp.eye(g.pack, dtype=jnp.float32)
    return (state[:, :, :, :, None] * own.reshape(1, 1, g.pack, 1, g.pack, 1)).reshape(g.b, -1, *g.state)


def unpacked(state, g: Geometry):
    """The inverse of `_packed`."""
    if g.shared:
        return state.reshape(g.b, -1, g.k, g.pack, g.v).swapaxes(2, 3).reshape(g.b, g.h, g.k, g.v)
    state = state.reshape(g.b, -1, g.pack, g.state[0] // g.pack, g.pack, g.state[1] // g.pack)
    state = jnp.stack([state[:, :, i, :, i] for i in range(g.pack)], 2)
    state = state.swapaxes(3, 4) if g.channel else state
    return state.reshape(g.b, g.h, g.k, g.v)


def call(kernel, g: Geometry, inputs: Specs, outputs: Specs, *, interpret, name: str, states: int) -> dict[str, Any]:
    """pallas_call of a kernel that takes refs by name: inputs, outputs, and the scratch `carry` (packs, *g.state) and
    `states` (that many)."""
    scratch = {"carry": (g.packs, *g.state)} | ({"states": (states, g.packs, *g.state)} if states else {})
    grid = (g.b, g.steps, g.n_blocks)
    return call_by_name(lambda refs: kernel(refs, g), grid, inputs, outputs, scratch, interpret=interpret, name=name)
