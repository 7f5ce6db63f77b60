"""Hopper kernels of wkv4: sums in registers, pieces of time, and loads.

A thread block of one warpgroup scans 256 channels of one piece of a row, two adjacent channels per thread. b d channels
are too few threads for a GPU, so time is split into pieces of whole chunks. One kernel computes the sums of each piece
from empty sums; later kernels combine the sums of earlier pieces before their first chunk.
Exponents are in base 2 (`sums.py`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dispatch import multiprocessors
from pallas_kernels.hopper.ring import Ring, pad_tokens
from pallas_kernels.wkv4.state import EMPTY
from pallas_kernels.wkv4.sums import LOG2_E, Sums

CHANNELS = 256
"""Channels of a block."""
CHUNK = 16
"""Tokens of a chunk, unrolled; `forward` saves the sums before each chunk for `backward`."""
WHOLE = range(CHUNK)
"""Its tokens."""
RESIDENT = 4
"""Target number of blocks per multiprocessor."""
LEAST_CHUNKS = 4
"""Minimum chunks of a piece."""
JOINED = 8
"""Pieces whose sums are loaded at once."""
REPEATS = 2
"""Entries per token in an array of scalars: copies are multiples of 128 bytes."""
RESET = EMPTY
"""Added to an exponent to reset sums; 2 and 3 times EMPTY are finite."""

LAYOUT = plgpu.Layout.WG_STRIDED((CHANNELS,), vec_size=2)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs of the kernels, and the split of the work."""

    arrays: dict[str, jax.Array]
    """k, v (b, t', d), w, u (d,) float32; with documents resets (b, 2 t') and cuts (b, pieces): `RESET` where a token,
    or any token of a piece, begins a document, else 0."""
    t: int
    """Tokens of a row; t' includes padding."""
    piece: int
    """Chunks of a piece; the last one may have fewer."""

    @property
    def documents(self) -> bool:
        return "resets" in self.arrays

    @property
    def shape(self) -> tuple[int, int, int]:
        """b, t', d."""
        return self.arrays["k"].shape

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return self.shape[1] // CHUNK

    @property
    def pieces(self) -> int:
        """Pieces of a row."""
        return -(-self.chunks // self.piece)

    def grid(self, pieces: int) -> dict[str, int]:
        """A block for each row, piece and `CHANNELS` channels."""
        return {"b": self.shape[0], "piece": pieces, "block": self.shape[2] // CHANNELS}

    def count(self, piece):
        """Chunks of a piece."""
        if self.chunks % self.piece == 0:
            return jnp.int32(self.piece)
        return jnp.minimum(self.piece, self.chunks - piece * self.piece)

    def sums_like(self, pieces: int) -> jax.ShapeDtypeStruct:
        """num, den, top of every piece."""
        b, _, d = self.shape
        return jax.ShapeDtypeStruct((3, b, pieces, d), jnp.float32)


def inputs(k, v, w, u, keep) -> Inputs:
    """Converts the arrays of `api.py`."""
    b, t, d = k.shape
    chunks = -(-t // CHUNK)
    piece = chunks_of_a_piece(b, chunks, d)
    arrays = {"k": pad_tokens(k, CHUNK), "v": pad_tokens(v, CHUNK), "w": w, "u": u}
    if keep is not None:
        resets = pad_tokens(jnp.where(keep > 0, 0.0, RESET).astype(jnp.float32), CHUNK)
        arrays["resets"] = jnp.repeat(resets, REPEATS, axis=1)
        resets = jnp.pad(resets, [(0, 0), (0, -resets.shape[1] % (piece * CHUNK))])
        arrays["cuts"] = resets.reshape(b, -1, piece * CHUNK).min(2)
    return Inputs(arrays, t, piece)


def chunks_of_a_piece(b: int, chunks: int, d: int) -> int:
    """Chunks per piece: whole rows if their blocks fill the GPU, because pieces are read twice."""
    blocks, cores = b * (d // CHANNELS), multiprocessors()
    pieces = 1 if blocks >= 1.5 * cores else max(1, RESIDENT * cores // blocks)
    return min(chunks, max(LEAST_CHUNKS, -(-chunks // pieces)))


class Block:
    """Work of a thread block: its position, its ring of chunks, and rows in float32."""

    def __init__(self, r, given: Inputs, names: tuple[str, ...], stages: int, *, first_piece=0, reverse: bool = False):
        self.r, self.given, self.stages = r, given, stages
        self.batch, self.piece = lax.axis_index("b"), lax.axis_index("piece") + first_piece
        self.channels = pl.ds(lax.axis_index("block") * CHANNELS, CHANNELS)
        self.count = given.count(self.piece)
        self.w, self.u = (self._load(x.at[self.channels]) * LOG2_E for x in (r.w, r.u))
        self.reverse = reverse
        ring = tuple(self._source(name) for name in names)
        self.ring = Ring(ring, lambda position: self.chunk(position) * CHUNK, self.count, stages, r.full, None, lag=0)

    def chunk(self, position):
        """Index of the chunk at a position of the scan."""
        return self.piece * self.given.piece + (self.count - 1 - position if self.reverse else position)

    def _source(self, name: str) -> tuple[Any, Callable, Callable]:
        slots = getattr(self.r, f"{name}_s")
        index = {
            "resets": lambda row: (self.batch, pl.ds(row * REPEATS, CHUNK * REPEATS)),
            "borders": lambda row: (slice(None), self.batch, lax.div(row, jnp.int32(CHUNK)), self.channels),
        }.get(name, lambda row: (self.batch, pl.ds(row, CHUNK), self.channels))
        return getattr(self.r, name), index, lambda slot: slots.at[slot]

    def scan(self, chunk: Callable, carry):
        """carry = chunk(position, tokens, carry) from the first chunk to the last one, or backwards."""
        self.ring.start()

        def turn(position, carry):
            slot = lax.rem(position, jnp.int32(self.stages))
            plgpu.barrier_wait(self.r.full.at[slot])
            carry = chunk(self.chunk(position), Tokens(self, slot, self.chunk(position)), carry)
            plgpu.commit_smem()  # a barrier: no warp reads the slot afterwards
            self.ring.refill(position)
            return carry

        return lax.fori_loop(0, self.count, turn, carry)

    def sums_of(self, ref, *index) -> Sums:
        """Loads num, den and top from memory (3, b, .., d)."""
        return Sums(*(self._load(ref.at[(i, self.batch, *index, self.channels)]) for i in range(3)))

    def joined(self, state: Sums, own, count, piece_of: Callable, *, first_own: int = 0) -> Sums:
        """Sums after `count` pieces (piece_of(0) first), from the sums before them and own (3, b, pieces, d), whose
        first piece is `first_own`."""

        def group(i, state):
            pieces = [piece_of(jnp.minimum(i * JOINED + j, count - 1)) for j in range(JOINED)]
            news = [self.sums_of(own, piece - first_own) for piece in pieces]
            for j, (piece, new) in enumerate(zip(pieces, news, strict=True)):
                real = i * JOINED + j < count
                length = jnp.minimum(self.given.piece * CHUNK, self.given.t - piece * self.given.piece * CHUNK)
                past = state.top - self.w * jnp.where(real, length, 0).astype(jnp.float32)
                if self.given.documents:
                    past = past + jnp.where(real, self.r.cuts[self.batch, piece], 0.0)
                new = new._replace(top=new.top + jnp.where(real, 0.0, RESET))
                state = state._replace(top=past).with_term(new.top, new.num, new.den)
            return state

        return lax.fori_loop(0, lax.div(count + JOINED - 1, jnp.int32(JOINED)), group, state)

    @staticmethod
    def _load(ref):
        return plgpu.load(ref, layout=LAYOUT, optimized=False).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A chunk in shared memory."""

    block: Block
    slot: Any
    chunk: Any

    def load(self, name: str, tokens: range = WHOLE) -> list[Any]:
        """k, v or dy of tokens, (256,) each."""
        ref = getattr(self.block.r, f"{name}_s")
        return [Block._load(ref.at[self.slot, i]) for i in tokens]

    def keys(self, tokens: range = WHOLE) -> list[Any]:
        """Keys in base 2; `EMPTY` for padding."""
        keys = [k * LOG2_E for k in self.load("k", tokens)]
        if not self._padded:
            return keys
        return [k + jnp.where(self._real(i), 0.0, EMPTY) for i, k in zip(tokens, keys, strict=True)]

    def decay(self, token: int):
        """w, but 0 for padding."""
        return self.but_padding(self.block.w, token)

    def but_padding(self, x, token: int):
        """x, or 0 for padding."""
        return x * jnp.where(self._real(token), 1.0, 0.0) if self._padded else x

    def reset(self, exponent, token: int):
        """Exponent before a token, reset at a new document."""
        return exponent + self.block.r.resets_s[self.slot, token * REPEATS] if self.block.given.documents else exponent

    @property
    def _padded(self) -> bool:
        return self.block.given.t % CHUNK > 0

    def _real(self, token: int):
        return self.chunk * CHUNK + token < self.block.given.t

    def border(self) -> Sums:
        """Saved sums before the chunk: mean value and logarithm of the weights."""
        mean, top = (Block._load(self.block.r.borders_s.at[self.slot, i]) for i in range(2))
        return Sums(mean, full(1.0), top)


def nothing() -> Sums:
    """The sums of no tokens."""
    return Sums(full(0.0), full(0.0), full(EMPTY))


def full(x: float):
    """(256,) filled with a number."""
    return plgpu.layout_cast(jnp.full((CHANNELS,), x, jnp.float32), LAYOUT)


def scratch(given: Inputs, names: tuple[str, ...], stages: int) -> dict[str, Any]:
    """Shared memory of a `Block`, and its barriers."""
    shapes = {"resets": ((CHUNK * REPEATS,), jnp.float32), "borders": ((2, CHANNELS), jnp.float32)}
    found = {}
    for name in names:
        shape, dtype = shapes.get(name) or ((CHUNK, CHANNELS), given.arrays[name].dtype)
        found[f"{name}_s"] = plgpu.SMEM((stages, *shape), dtype)
    return found | {"full": plgpu.Barrier(num_arrivals=len(names), num_barriers=stages)}
