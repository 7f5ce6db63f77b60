"""Layouts of the Hopper kernels, how they split a sequence over thread blocks, and conversions in plain XLA.

Legend: b batch, t time, h query heads, k key dim, v value dim, c chunk (64 rows), f features.

Features: the columns of `mosaic_gpu_features`. The query side has the weights: x = scale q in place of q, 1/2 on
squares. Keys are padded to `Widths.keys`, values to tiles of `Widths.values`; for the kernels a tile is a head.

Public state: s (b, h, f, v), z (b, h, f) float32 with the f = 1 + k + k (k + 1) / 2 features [1, x_a, x_a x_b
(a <= b)].
Kernel state, per head and tile, float32:
  s `Widths.state`: S[c, v] or its transpose, with the columns c of `mosaic_gpu_features`;
  z (64, keys): the first rows are the symmetric matrix Z2 = sum_j k_j k_j^T, row `keys` is z1 = sum_j k_j, the rest 0;
    neither carries weights, also in the cotangent, which sums over queries. With two parts, each has 2 `keys` rows, and
    the state is the sum of both.
The count (slot 0 of the public z) is known in closed form and not part of the kernel state.

A block scans a segment, and keeps the state of one head and tile of values in the registers of one warpgroup, float32;
the widths of tiles follow from the key dim and dtype:

  bfloat16   k <= 16   153 features, tiles of 64 values: values x features, 64 x 160, in 80 registers per thread;
             k <= 24   325 features, tiles of 32 values: features x values, 384 x 32, in 96;
             k <= 32   561 features, tiles of 32 values: features x values, 576 x 32, in 144;
  float32    k <= 16   153 features, tiles of 32 values: features x values, 192 x 32, in 48.

Every tile of values repeats the work on weights and features. Tensor cores multiply float32 in parts (`hopper.parts`),
which take twice the shared memory.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels.dispatch import hopper_objection, multiprocessors
from pallas_kernels.taylor_attention.mosaic_gpu_features import channels, constant_column
from pallas_kernels.taylor_attention.problem import Problem

CHUNK = 64

Cut = tuple[int, int]
"""First column, and the column after the last."""


@dataclasses.dataclass(frozen=True)
class Widths:
    """Tile widths for a key dim and dtype. Cuts split the columns of the features, differently for each use."""

    groups: int  # of 8 channels: 2, 3 or 4
    keys: int  # of the tiles of q and k; channels after the key dim are 0
    values: int  # of a tile of values
    columns: int  # of the state
    scanned: tuple[Cut, ...]  # pieces of the scan, and of a state in registers
    read: tuple[Cut, ...]  # pieces of outputs; up to the last feature
    pulled: tuple[Cut, ...]  # pieces of cotangents of features
    stages: int  # depth of the TMA ring: loads run stages - 2 chunks ahead
    parts: int = 1  # of an operand: 1 for bfloat16, 2 for float32

    @property
    def dtype(self):
        """Dtype of q, k, v, outputs, and features in registers."""
        return jnp.bfloat16 if self.parts == 1 else jnp.float32

    @property
    def values_first(self) -> bool:
        """Whether a state is (values, features) or (features, values): wgmma needs at least 64 rows."""
        return self.values == CHUNK

    @property
    def state(self) -> tuple[int, int]:
        return (self.values, self.columns) if self.values_first else (self.columns, self.values)

    def part(self, cut: Cut) -> tuple[slice, slice]:
        """Index of the columns of a cut in a state."""
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
"""Largest key width of the kernels, by dtype of q, k and v."""


def widths(key_dim: int, dtype: DTypeLike) -> Widths:
    """Widths for a key dim up to `MAX_KEY_DIM`."""
    return _widths(key_dim, 2 if jnp.dtype(dtype) == jnp.float32 else 1)


@functools.cache
def _widths(key_dim: int, parts: int) -> Widths:
    return next(x for x in WIDTHS if x.parts == parts and key_dim <= 8 * x.groups)


def value_tiles(key_dim: int, value_dim: int, dtype: DTypeLike) -> int:
    """Tiles of values of a head."""
    return -(-value_dim // widths(key_dim, dtype).values)


MIN_CHUNKS = 2


@dataclasses.dataclass(frozen=True)
class Segments:
    """Split of t tokens into chunks of 64, and of the chunks into `asked` segments, one thread block each."""

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
        """Number of segments, none of them empty: at most `asked`."""
        return -(-self.chunks // self.chunks_each)

    @property
    def padded(self) -> int:
        return self.chunks * CHUNK

    def piece_chunks(self, pieces: int) -> int:
        """Chunks of each piece of a segment but the last."""
        return -(-self.chunks_each // pieces)

    def pieces(self, asked: int) -> int:
        """Number of pieces, none of them empty in a whole segment: at most `asked`."""
        return -(-self.chunks_each // self.piece_chunks(max(1, min(asked, self.chunks_each))))

    def length(self, segment: int) -> int:
        """Tokens of a segment."""
        return min(self.t - segment * self.chunks_each * CHUNK, self.chunks_each * CHUNK)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Estimated microseconds on an H100 for 16 key and 64 value channels, bfloat16."""

    chunk: float
    """One chunk in the main kernels."""
    chunk_bytes: float
    """The bytes of one chunk, if all blocks share the memory."""
    local: float
    """One chunk in `local_states`."""
    local_bytes: float
    """The bytes of one chunk in `local_states`."""
    split: float
    """Fixed cost of a split: launches, and sums of states."""

    def of(self, segments: int, blocks: int, chunks: int) -> float:
        """Cost of `blocks` with `chunks` each, split into `segments`."""
        each, total = -(-chunks // segments), blocks * chunks
        main = max(self.chunk * each, self.chunk_bytes * total)
        if segments == 1:
            return main
        return main + max(self.local * each, self.local_bytes * total * (1 - 1 / segments)) + self.split


FORWARD = Cost(0.65, 0.0062, 0.21, 0.0031, 10.0)
TRAINING = Cost(2.75, 0.0255, 0.47, 0.0067, 20.0)
"""Cost of the forward pass alone, and with the backward pass."""


def choose_segments(blocks: int, t: int, cost: Cost) -> int:
    """Number of segments with the least cost, at least two chunks each, at most one block per multiprocessor."""
    chunks = -(-t // CHUNK)
    most = max(1, min(multiprocessors() // max(blocks, 1), chunks // MIN_CHUNKS))
    return min(range(1, most + 1), key=lambda segments: cost.of(segments, blocks, chunks))


def choose_pieces(blocks: int, chunks: int) -> int:
    """Number of pieces, at least two chunks each, so that `blocks` of `chunks` each fill every multiprocessor once."""
    return max(1, min(multiprocessors() // max(blocks, 1), chunks // MIN_CHUNKS))


def kernel_segments(p: Problem, cost: Cost) -> int:
    """Number of segments of a call."""
    return Segments(p.t, choose_segments(p.b * p.h * value_tiles(p.k, p.v, p.dtype), p.t, cost)).count


def planned_segments(q, v, options: Any) -> int:
    """Number of segments of a sequence for `Options` of `api.py`."""
    (b, t, h, k_dim), v_dim = q.shape, v.shape[3]
    problem = Problem(b=b, t=t, h=h, k=k_dim, v=v_dim, dtype=q.dtype.name)
    return options.kernel_segments or kernel_segments(problem, TRAINING if options.save_states else FORWARD)


def saved_like(q, k, v, state, *_: Any, options: Any) -> tuple:
    """Denominators, and the kernel states at the starts of segments (at most 11 MB)."""
    (b, t, h, k_dim), count = q.shape, planned_segments(q, v, options._replace(save_states=True))
    den = jax.ShapeDtypeStruct((b, h, t), jnp.float32) if options.normalize else None
    if count == 1:
        return den, None
    shapes = border_shapes(b, h, k_dim, v.shape[3], q.dtype, count - (state is None))
    return den, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


def border_shapes(
    b: int, h: int, key_dim: int, value_dim: int, dtype: DTypeLike, states: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the kernel states s and z of `border_states`."""
    at, sizes = (b, h * value_tiles(key_dim, value_dim, dtype), states), widths(key_dim, dtype)
    return (*at, *sizes.state), (*at, CHUNK, sizes.keys)


def join_pieces(x, decay, *, segments: Segments, pieces: int, reverse: bool):
    """Adds the sums over pieces of each segment: (b, blocks, n * pieces, ...) -> (b, blocks, n, ...).

    decay: `decay_table` or None. The sum of a piece decays over the later pieces of its segment (reverse: earlier).
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
    """States at the starts of segments, (b, blocks, n_seg, ...): start_0 = boundary,
    start_{i+1} = decay^length_i start_i + local_i; reverse: from the last segment to the first.

    boundary None: zeros, which are left out: (b, blocks, n_seg - 1, ...), and None for a single segment, which needs no
    local. log_decay: (blocks,) or None.
    """
    if segments.count == 1:
        return None if boundary is None else jax.tree.map(lambda x: x[:, :, None], boundary)
    order = range(segments.count - 1)
    state, states = boundary, [] if boundary is None else [boundary]
    for i in reversed(order) if reverse else order:
        # local has segments 0 .. n-2 forward, 1 .. n-1 in reverse
        part = jax.tree.map(lambda x, i=i: x[:, :, i], local)
        if state is not None and log_decay is not None:
            rate = jnp.exp(log_decay * segments.length(i + 1 if reverse else i))
            state = jax.tree.map(lambda x, rate=rate: x * rate.reshape(1, -1, *[1] * (x.ndim - 2)), state)
        state = part if state is None else jax.tree.map(jnp.add, state, part)
        states.append(state)
    states = states[::-1] if reverse else states
    return jax.tree.map(lambda *xs: jnp.stack(xs, 2), *states)


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    reason = hopper_objection(p.dtypes, tuple(MAX_KEY_DIM))
    if reason is not None:
        return reason
    most = MAX_KEY_DIM[p.dtypes[0]]
    return f"feature_dim={p.k} is more than {most}, the most for {p.dtypes[0]}" if p.k > most else None


def automatic(p: Problem) -> bool:
    """Whether the kernels may be chosen automatically: not for float32 and wider keys."""
    return p.dtype_name == "bfloat16" and p.k <= 16


def split_scale(scale: float) -> tuple[float, float]:
    """(factor of s inside the kernels, factor of q before them); only powers of two go inside."""
    return (scale, 1.0) if math.frexp(abs(scale))[0] == 0.5 else (1.0, scale)


def public_columns(key_dim: int, sizes: Widths) -> np.ndarray:
    """Kernel column of every public feature, (f,)."""
    first, second = channels(sizes.groups, sizes.columns)
    columns = {tuple(sorted(x for x in pair if x >= 0)): i for i, pair in enumerate(zip(first, second, strict=True))}
    rows, cols = np.triu_indices(key_dim)
    pairs = [columns[pair] for pair in zip(rows, cols, strict=True)]
    return np.array([constant_column(sizes.groups), *(columns[(a,)] for a in range(key_dim)), *pairs])


def pad_minor(x, multiple: int):
    """Pads the last axis with zeros to a multiple."""
    pad = -x.shape[-1] % multiple
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)]) if pad else x


def split_values(x, width: int):
    """(b, t, heads, v) -> (b, t, heads * tiles, width); no copy if v is a multiple of width."""
    x = pad_minor(x, width)
    return x.reshape(*x.shape[:2], -1, width)


def join_values(x, heads: int, value_dim: int):
    """Inverse of `split_values`."""
    return x.reshape(*x.shape[:2], heads, -1)[..., :value_dim]


def pack_state(
    s: jax.Array, z: jax.Array, key_dim: int, sizes: Widths, *, z_once: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Public s (b, h, f, v), z (b, h, f) -> kernel s (b, h * tiles, *Widths.state), z (b, h * tiles, 64, keys).

    z is repeated over the tiles of a head; z_once: only the first tile has it, as a cotangent must count once.
    """
    b, h, features = z.shape
    s = pad_minor(s, sizes.values)
    tiles = s.shape[-1] // sizes.values
    # Gathers from arrays with a zero appended; index `features` reads the zero.
    source = np.full(sizes.columns, features)
    source[public_columns(key_dim, sizes)] = np.arange(features)
    s = jnp.pad(s, ((0, 0), (0, 0), (0, 1), (0, 0)))[:, :, source]
    s = s.reshape(b, h, sizes.columns, tiles, sizes.values).transpose(0, 1, *_state_axes(sizes))
    rows, cols = np.triu_indices(key_dim)
    source = np.full((CHUNK, sizes.keys), features)
    source[rows, cols] = source[cols, rows] = np.arange(1 + key_dim, features)
    source[sizes.keys, :key_dim] = np.arange(1, 1 + key_dim)
    z = jnp.pad(z, ((0, 0), (0, 0), (0, 1)))[:, :, source]
    z = jnp.pad(z[:, :, None], ((0, 0), (0, 0), (0, tiles - 1), (0, 0), (0, 0)), "constant" if z_once else "edge")
    return s.reshape(b, h * tiles, *sizes.state), z.reshape(b, h * tiles, CHUNK, sizes.keys)


def _state_axes(sizes: Widths) -> tuple[int, int, int]:
    """Axes of (b, h, columns, tiles, values) that make (tiles, *Widths.state)."""
    return (3, 4, 2) if sizes.values_first else (3, 2, 4)


def one_border(state, key_dim: int, dtype: DTypeLike):
    """Kernel state before the only segment, (b, blocks, 1, ...); state: public (s, z) or None for zeros."""
    return None if state is None else tuple(x[:, :, None] for x in pack_state(*state, key_dim, widths(key_dim, dtype)))


def unpack_state(
    s, z, count, key_dim: int, value_dim: int, sizes: Widths, *, z_sum: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Inverse of `pack_state`; count (b, h) is slot 0 of the public z; z_sum adds the z of tiles, for a cotangent."""
    b, h = count.shape
    tiles = s.shape[1] // h
    s = s.reshape(b, h, tiles, *sizes.state).transpose(0, 1, *(2 + np.argsort(_state_axes(sizes))))
    s = s.reshape(b, h, sizes.columns, tiles * sizes.values)[:, :, public_columns(key_dim, sizes), :value_dim]
    z = z.reshape(b, h, tiles, CHUNK, sizes.keys)
    z = z.sum(2) if z_sum else z[:, :, 0]
    z = z.reshape(b, h, -1, 2 * sizes.keys, sizes.keys).sum(2)
    rows, cols = np.triu_indices(key_dim)
    return s, jnp.concatenate([count[..., None], z[:, :, sizes.keys, :key_dim], z[:, :, rows, cols]], -1)


@dataclasses.dataclass(frozen=True)
class Heads:
    """Head of each operand that a block reads; a block is one (query head, tile of values)."""

    query: int
    key: int
    tiles: int
    widths: Widths

    @property
    def blocks(self) -> int:
        return self.query * self.tiles

    def of_query(self, block):
        return block // self.tiles

    def of_key(self, block):
        return block // (self.tiles * (self.query // self.key))

    def of_value(self, block):
        return self.of_key(block) * self.tiles + block % self.tiles

    def of_block(self, block):
        return block


def pad_time(x, t: int):
    """Pads time to whole chunks if TMA cannot cut the tail: t < 64, or t no multiple of 8."""
    rows = -t % CHUNK if t < CHUNK or t % 8 else 0
    return jnp.pad(x, ((0, 0), (0, rows), (0, 0), (0, 0))) if rows else x


def decay_table(log_decay, t: int):
    """Powers of the decay for t tokens, (h, 4, 64) float32, from log decay (h,); None for None.

    The last chunk has tail = 1 .. 64 tokens. Row 0: decay^(i+1); 1: decay^(63-i); 2: decay^(tail-1-i), 1 for i >= tail;
    3: log2 decay, sum_{i<64} decay^i, decay^64, decay^tail, 0 ...
    """
    if log_decay is None:
        return None
    tail = (t - 1) % CHUNK + 1
    row = np.arange(CHUNK)
    exponents = np.stack([row + 1, CHUNK - 1 - row, np.maximum(tail - 1 - row, 0)]).astype(np.float32)
    powers = jnp.exp(log_decay[:, None, None] * exponents[None])
    scalars = [log_decay * np.float32(1 / np.log(2)), powers[:, 1].sum(-1), powers[:, 0, -1], powers[:, 0, tail - 1]]
    scalars = jnp.pad(jnp.stack(scalars, -1), ((0, 0), (0, CHUNK - len(scalars))))
    return jnp.concatenate([powers, scalars[:, None]], 1)


def decayed_counts(log_decay, count0, tokens: int):
    """Slot 0 of z after `tokens` tokens: decay^n count0 + sum_{j<n} decay^j; log_decay (h,) or None, count0 (b, h)."""
    if log_decay is None:
        return count0 + np.float32(tokens)
    flat = log_decay == 0
    rate = jnp.where(flat, -1.0, log_decay)  # keeps 0/0 out of the unused branch
    grown = jnp.where(flat, np.float32(tokens), jnp.expm1(tokens * rate) / jnp.expm1(rate))
    return count0 * jnp.exp(tokens * log_decay)[None] + grown[None]
