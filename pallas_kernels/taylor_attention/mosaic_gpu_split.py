"""How the Hopper kernels split a sequence over thread blocks, and the states at the borders, in plain XLA.

A block scans a segment, from the state at its start: the sum over the segments before, which
`mosaic_gpu_state.local_states` makes in pieces. Legend and kernel states: `mosaic_gpu_layout`.

The width of tiles follows from the key dim and dtype: what a block's registers and shared memory hold. A block keeps
the state of one head and of a tile of its values in the registers of one warpgroup, float32, 64 rows at a time:

  bfloat16   k <= 16   153 features, tiles of 64 values: values x features, 64 x 160, in 80 registers a thread;
             k <= 24   325 features, tiles of 32 values: features x values, 384 x 32, in 96;
             k <= 32   561 features, tiles of 32 values: features x values, 576 x 32, in 144;
  float32    k <= 16   153 features, tiles of 32 values: features x values, 192 x 32, in 48.

A tile of values is a block of its own, and repeats the work on weights and features. The other way to halve a state,
half of the features a block, would make every output a sum over blocks: in float32, and through global memory, 4 to 6
times the bytes of the output itself. Above 16 channels the features of a chunk pass through shared memory in pieces of
128 columns, and meet the published state in pieces that leave registers to the rest.

Tensor cores multiply float32 in parts (`mosaic_gpu_parts`): every operand, features and published states among them,
takes twice the shared memory. Pieces of 64 columns and tiles of 32 values make room, at k <= 16; at k = 24 the states
alone would take 96 KB, and the ring 120.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels.dispatch import multiprocessors
from pallas_kernels.taylor_attention.problem import Problem

CHUNK = 64

Cut = tuple[int, int]
"""Columns from, and up to."""


@dataclasses.dataclass(frozen=True)
class Widths:
    """groups: of 8 channels, 2, 3 or 4. Cuts split the columns of the features, as each use takes them."""

    groups: int
    keys: int  # of the tiles of q and k; channels beyond the key dim are 0
    values: int  # of a tile of values
    columns: int  # of the state
    scanned: tuple[Cut, ...]  # pieces that the scan takes in, which are the parts of a state in registers
    read: tuple[Cut, ...]  # ... whose products with the state make outputs; up to the last feature
    pulled: tuple[Cut, ...]  # ... of the cotangents of features
    stages: int  # depth of the TMA ring: loads run stages - 2 chunks ahead, which must hide the latency of memory
    parts: int = 1  # bfloat16 numbers that make an operand of a product: 1 of bfloat16, 2 of float32

    @property
    def dtype(self):
        """Dtype of q, k, v and outputs, and of features in registers."""
        return jnp.bfloat16 if self.parts == 1 else jnp.float32

    @property
    def values_first(self) -> bool:
        """Whether a state is (values, features), not (features, values): wgmma has 64 rows at least."""
        return self.values == CHUNK

    @property
    def state(self) -> tuple[int, int]:
        return (self.values, self.columns) if self.values_first else (self.columns, self.values)

    def part(self, cut: Cut) -> tuple[slice, slice]:
        """Where the columns of a cut are in a state."""
        whole, columns = slice(None), slice(*cut)
        return (whole, columns) if self.values_first else (columns, whole)


def _cuts(*stops: int) -> tuple[Cut, ...]:
    return tuple(zip((0, *stops), stops, strict=False))


WIDTHS = (
    Widths(2, 16, 64, 160, scanned=_cuts(160), read=_cuts(160), pulled=_cuts(96, 160), stages=4),
    Widths(
        3, 32, 32, 384, scanned=_cuts(128, 256, 384), read=_cuts(96, 192, 288, 352),
        pulled=_cuts(*range(64, 321, 64), 352), stages=4,
    ),
    Widths(
        4, 32, 32, 576, scanned=_cuts(*range(128, 513, 128), 576), read=_cuts(*range(64, 577, 64)),
        pulled=_cuts(*range(72, 577, 72)), stages=3,
    ),
    Widths(
        2, 16, 32, 192, scanned=_cuts(64, 128, 192), read=_cuts(64, 128, 160), pulled=_cuts(64, 128, 160), stages=3,
        parts=2,
    ),
)  # fmt: skip
MAX_KEY_DIM = {"bfloat16": 32, "float32": 16}
"""By dtype of q, k and v."""


def widths(key_dim: int, dtype: DTypeLike) -> Widths:
    """Widths for a key dim up to `MAX_KEY_DIM`."""
    return _widths(key_dim, 2 if jnp.dtype(dtype) == jnp.float32 else 1)


@functools.cache
def _widths(key_dim: int, parts: int) -> Widths:
    return next(x for x in WIDTHS if x.parts == parts and key_dim <= 8 * x.groups)


def value_tiles(key_dim: int, value_dim: int, dtype: DTypeLike) -> int:
    """Tiles of values that make a head."""
    return -(-value_dim // widths(key_dim, dtype).values)


MIN_CHUNKS = 2


@dataclasses.dataclass(frozen=True)
class Segments:
    """How t tokens split into chunks of 64, and the chunks into `asked` runs, each scanned by its own thread
    block."""

    t: int
    asked: int

    @property
    def chunks(self) -> int:
        return -(-self.t // CHUNK)

    @property
    def chunks_each(self) -> int:
        return -(-self.chunks // max(1, min(self.asked, self.chunks)))

    @property
    def count(self) -> int:
        """Segments in use: none is empty, so this may be less than asked for."""
        return -(-self.chunks // self.chunks_each)

    @property
    def padded(self) -> int:
        return self.chunks * CHUNK

    def piece_chunks(self, pieces: int) -> int:
        """Chunks in each of the pieces of a segment but the last."""
        return -(-self.chunks_each // pieces)

    def pieces(self, asked: int) -> int:
        """Pieces in use: none is empty in a whole segment, so this may be less than asked for."""
        return -(-self.chunks_each // self.piece_chunks(max(1, min(asked, self.chunks_each))))

    def length(self, segment: int) -> int:
        """Tokens in a segment."""
        return min(self.t - segment * self.chunks_each * CHUNK, self.chunks_each * CHUNK)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Microseconds on an H100, predicted by the schedules for 16 key and 64 value channels, bfloat16."""

    chunk: float
    """That the main kernels take for a chunk of their block ..."""
    chunk_bytes: float
    """... and that its bytes take where all blocks share the memory."""
    local: float
    """Cost of one more pass over keys and values ..."""
    local_bytes: float
    """... and its bytes."""
    split: float
    """Fixed cost of a split: launches, and sums of states."""

    def of(self, segments: int, blocks: int, chunks: int) -> float:
        """Cost of `blocks` of `chunks` each, split in `segments`."""
        each, total = -(-chunks // segments), blocks * chunks
        main = max(self.chunk * each, self.chunk_bytes * total)
        if segments == 1:
            return main
        return main + max(self.local * each, self.local_bytes * total * (1 - 1 / segments)) + self.split


FORWARD = Cost(0.65, 0.0062, 0.21, 0.0031, 10.0)
TRAINING = Cost(2.75, 0.0255, 0.47, 0.0067, 20.0)
"""With the backward pass."""


def choose_segments(blocks: int, t: int, cost: Cost) -> int:
    """How many of at least two chunks, one block per multiprocessor and wave, take the least time."""
    chunks = -(-t // CHUNK)
    most = max(1, min(multiprocessors() // max(blocks, 1), chunks // MIN_CHUNKS))
    return min(range(1, most + 1), key=lambda segments: cost.of(segments, blocks, chunks))


def choose_pieces(blocks: int, chunks: int) -> int:
    """Pieces that cut `blocks` of `chunks` each to fill the chip with one per multiprocessor, of at least two chunks.

    Two per multiprocessor would take no longer, but make twice the states to write and to sum.
    """
    return max(1, min(multiprocessors() // max(blocks, 1), chunks // MIN_CHUNKS))


def kernel_segments(p: Problem, cost: Cost) -> int:
    """Segments that the kernels make of a call."""
    return Segments(p.t, choose_segments(p.b * p.h * value_tiles(p.k, p.v, p.dtype), p.t, cost)).count


def border_shapes(
    b: int, h: int, key_dim: int, value_dim: int, dtype: DTypeLike, states: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the kernel states s and z of `border_states`."""
    at, sizes = (b, h * value_tiles(key_dim, value_dim, dtype), states), widths(key_dim, dtype)
    return (*at, *sizes.state), (*at, CHUNK, sizes.keys)


def join_pieces(x, decay, *, segments: Segments, pieces: int, reverse: bool):
    """Sums over segments, from sums over the pieces of each: (b, blocks, n * pieces, ...) -> (b, blocks, n, ...).

    decay: `decay_table` or None. What a piece sums decays over the later pieces of its segment (reverse: the earlier).
    """
    x = x.reshape(*x.shape[:2], -1, pieces, *x.shape[3:])
    if decay is not None:
        starts = np.arange(pieces + 1) * segments.piece_chunks(pieces)
        chunks = starts[:-1] if reverse else segments.chunks_each - np.minimum(starts[1:], segments.chunks_each)
        powers = jnp.exp2(decay[:, 3, :1] * (CHUNK * chunks[None]).astype(np.float32))
        powers = jnp.repeat(powers, x.shape[1] // len(powers), axis=0)
        x = x * powers.reshape(1, x.shape[1], 1, pieces, *[1] * (x.ndim - 4))
    return x.sum(3)


def border_states(local, boundary, log_decay, *, segments: Segments, reverse: bool):
    """States at which the segments start their scan, (b, blocks, n_seg, ...), from local sums and the outer
    boundary.

    start_0 = boundary, start_{i+1} = decay^length_i start_i + local_i; reverse: from the last segment to the
    first. local, boundary: pytrees alike; boundary None for zeros, which are left out: (b, blocks, n_seg - 1, ...), and
    None for a single segment, which needs no local. log_decay: (blocks,) or None.
    """
    if segments.count == 1:
        return None if boundary is None else jax.tree.map(lambda x: x[:, :, None], boundary)
    order = range(segments.count - 1)
    state, states = boundary, [] if boundary is None else [boundary]
    for i in reversed(order) if reverse else order:
        # local holds segments 0 .. n-2 forward, 1 .. n-1 in reverse.
        part = jax.tree.map(lambda x, i=i: x[:, :, i], local)
        if state is not None and log_decay is not None:
            rate = jnp.exp(log_decay * segments.length(i + 1 if reverse else i))
            state = jax.tree.map(lambda x, rate=rate: x * rate.reshape(1, -1, *[1] * (x.ndim - 2)), state)
        state = part if state is None else jax.tree.map(jnp.add, state, part)
        states.append(state)
    states = states[::-1] if reverse else states
    return jax.tree.map(lambda *xs: jnp.stack(xs, 2), *states)
