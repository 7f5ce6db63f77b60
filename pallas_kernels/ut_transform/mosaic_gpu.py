"""The UT transform of all chunks on Hopper, from keys or from scores.

    A_ij = beta_i exp(G_i - G_j) k_i . k_j, j < i       mix = (I + A)^-1 Diag(beta)
    read = -exp(G) K            write = exp(G_c - G) K

A thread block of one warpgroup processes up to `PIECE` chunks of a row and head in turn. Scores are float32 sums in
registers; `hopper/inverse.py` inverts.

Pallas' own barriers are off. A chunk's outputs are staged after the wait for the previous copies, which is a barrier;
`commit_smem` after that orders stores before copies, and all reads of the chunk's slot before its reload.
`hopper.inverse.inverse` orders its own tiles.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.decays import log2_from_start
from pallas_kernels.gated_linear_attention.mosaic_gpu_vjp import between
from pallas_kernels.hopper import inverse as inverse_of_chunk
from pallas_kernels.hopper.levels import CHUNK, float_tile, half_tile, load, tile
from pallas_kernels.hopper.ring import Ring
from pallas_kernels.hopper.rows import Rows
from pallas_kernels.hopper.tiles import PER_COLUMN, PER_ROW, Mma, columns_to, launch, rows_to

HALF = CHUNK // 2
PIECE = 8
"""Chunks per thread block."""


class Array(NamedTuple):
    """An array of a launch, accessed by chunk."""

    value: Any
    """(b, n 64, tiles, 64), (b, n, h, 64, 64) or float32 (b, h, n 64); for an output its shape and dtype."""
    width: int
    """Tiles per chunk and head; 0: 64 numbers."""
    halves: bool = False
    """Whether there are two tiles of 32 channels."""

    @property
    def copies(self) -> int:
        """Number of copies per chunk."""
        return 2 if self.halves else max(1, self.width)

    @property
    def shared(self) -> Callable:
        """Function (slots) -> shared memory (slots, tiles, 64, 64) or (slots, 64)."""
        if self.width == 0:
            return lambda *slots: plgpu.SMEM((*slots, CHUNK), jnp.float32)
        if self.halves:
            return lambda *slots: half_tile(*slots, 2, dtype=self.value.dtype)
        kind = tile if self.value.dtype == jnp.bfloat16 else float_tile
        return lambda *slots: kind(*slots, self.width)

    def tiles(self, batch, head, chunk, shared) -> list[tuple[Any, Any]]:
        """Pairs of an index of the array and a part of shared memory."""
        if self.width == 0:
            return [((batch, head, pl.ds(chunk * CHUNK, CHUNK)), shared)]
        if self.halves:
            return [self._half(i, batch, head, chunk, shared) for i in range(2)]
        if len(self.value.shape) == 5:
            return [((batch, chunk, head), shared.at[0])]
        at = batch, pl.ds(chunk * CHUNK, CHUNK)
        return [((*at, head * self.width + i), shared.at[i]) for i in range(self.width)]

    def _half(self, i: int, batch, head, chunk, shared):
        """Half i of 64 tokens or rows, or of the first rows of a tile."""
        columns = pl.ds(i * HALF, HALF)
        if len(self.value.shape) == 5:
            count = self.value.shape[3]
            rows = pl.ds(0, count)
            return (batch, chunk, head, rows, columns), shared.at[i] if count == CHUNK else shared.at[i, rows]
        return (batch, pl.ds(chunk * CHUNK, CHUNK), head, columns), shared.at[i]


def numbers(x):
    """`Array` of (b, n 64, h) float32 numbers."""
    return None if x is None else Array(x.astype(jnp.float32).swapaxes(1, 2), 0)


def tokens(x):
    """`Array` of tiles of (b, n 64, h, width)."""
    return Array(x.reshape(*x.shape[:2], -1, CHUNK), x.shape[3] // CHUNK)


def like(x: Array, dtype: Any = None) -> Array:
    """Output shaped like x."""
    return Array(jax.ShapeDtypeStruct(x.value.shape, dtype or x.value.dtype), x.width)


def by_chunk(
    name: str, chunk, inputs: dict[str, Array | None], outputs: dict[str, Array], scratch: dict, *, sizes, stages: int,
    in_place: tuple[str, ...] = (), places: dict[str, Callable] | None = None, interpret,
):  # fmt: skip
    """Calls chunk(c) for every chunk of every row and head, with c an `InChunk`; returns the outputs.

    Args:
      sizes: b, h, n.
      stages: chunks in shared memory.
      in_place: names of inputs whose shared memory also stages the output d + name. stages is 1, and the next chunk is
        loaded after the copy of the output.
      places: name of scratch (also of the inverse) that shares other memory -> function of the references.
    """
    b, h, n = sizes
    given, places = {key: x for key, x in inputs.items() if x is not None}, places or {}

    def body(r):
        for key, place in places.items():
            setattr(r, key, place(r))
        first = lax.axis_index("piece") * PIECE
        count = jnp.minimum(n - first, PIECE)
        for turn in range(2):
            r.index_s[turn] = plgpu.broadcasted_iota(jnp.int32, (CHUNK,), 0, layout=PER_ROW)
        plgpu.commit_smem()

        batch, head = lax.axis_index("b"), lax.axis_index("h")

        def tiles(key: str, c, slot=None):
            """Pairs of an index of the array and a part of shared memory."""
            if key.removeprefix("d") in in_place and key in outputs:
                key, slot = key.removeprefix("d"), 0
            shared, zero = getattr(r, f"{key}_s"), r.index_s[0, 0] if in_place else 0
            place = shared if slot is None else shared.at[slot + zero]
            return (given | outputs)[key].tiles(batch + zero, head + zero, c, place)

        def load(key: str, i: int):
            return getattr(r, key), lambda c: tiles(key, c)[i][0], lambda slot: tiles(key, 0, slot)[i][1]

        loads = tuple(load(key, i) for key, array in given.items() for i in range(array.copies))
        ring = Ring(loads, lambda position: first + position, count, stages, r.full, None, lag=0)
        ring.start()
        mma = Mma(None if interpret is None else (r.staging, r.half_staging), 0)

        def step(position, _):
            slot = lax.rem(position, jnp.int32(stages))
            plgpu.barrier_wait(r.full.at[slot])
            chunk(InChunk(r, mma, Rows(None, interpret is not None), slot, position, given))
            plgpu.commit_smem()
            if not in_place:
                ring.refill(position)
            for key in outputs:
                for index, shared in tiles(key, first + position):
                    plgpu.copy_smem_to_gmem(shared, getattr(r, key).at[index])
            if in_place:
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                ring.refill(position)

        lax.fori_loop(0, count, step, None)
        plgpu.wait_smem_to_gmem(0)

    staged = {key: x for key, x in outputs.items() if key.removeprefix("d") not in in_place}
    memory = {f"{key}_s": x.shared(stages) for key, x in given.items()}
    memory |= {f"{key}_s": x.shared() for key, x in staged.items()} | scratch | inverse_of_chunk.scratch(interpret)
    memory = {key: x for key, x in memory.items() if key not in places}
    memory |= {"index_s": plgpu.SMEM((2, CHUNK), jnp.int32)}
    memory["full"] = plgpu.Barrier(num_arrivals=sum(x.copies for x in given.values()), num_barriers=stages)
    if interpret is not None:
        memory["staging"] = tile(1)
    return launch(
        f"ut_transform_{name}", body, {key: x and x.value for key, x in inputs.items()},
        {key: x.value for key, x in outputs.items()}, memory,
        grid={"b": b, "h": h, "piece": -(-n // PIECE)}, approx_math=True,
        interpret=interpret,
    )  # fmt: skip


class InChunk:
    """A chunk in shared memory."""

    def __init__(self, r, mma: Mma, rows: Rows, slot, position, given):
        self.r, self.mma, self.rows, self.slot, self.given = r, mma, rows, slot, given
        self.turn = lax.rem(position, jnp.int32(2))

    @property
    def index(self):
        """0 .. 63 from alternating buffers, so the compiler does not compute masks before the loop."""
        return self.r.index_s.at[self.turn]

    def shared(self, key: str):
        """Shared memory of the chunk; the added 0 is unknown to the compiler, so it computes addresses late."""
        return getattr(self.r, f"{key}_s").at[self.slot + self.index[0]]

    @property
    def square(self):
        """Tile `square_s` of gradient kernels."""
        return self.r.square_s.at[self.index[0]]

    def tile(self, key: str, i: int = 0):
        return self.shared(key).at[i]

    def per_row(self, key: str):
        return plgpu.load(self.shared(key), layout=PER_ROW)

    @property
    def width(self) -> int:
        """Tiles of keys."""
        return self.given["x"].width

    @property
    def from_keys(self) -> bool:
        return len(self.given["x"].value.shape) == 4

    def weighted(self):
        """A / beta (64, 64), strictly lower triangular."""
        if not self.from_keys:
            i, j = self.rows_and_columns()
            return jnp.where(i > j, load(self.tile("x")), 0.0)

        def run(acc):
            for i in range(self.width):
                plgpu.wgmma(acc, self.tile("x", i), self.tile("x", i).transpose((1, 0)))
            return acc[...]

        return pl.run_scoped(run, plgpu.ACC((CHUNK, CHUNK), jnp.float32)) * self.between()

    def between(self):
        """exp(G_i - G_j) for j < i, else 0."""
        if "log2" in self.given:
            return between(self.shared("log2"), self.index, strict=True)
        i, j = self.rows_and_columns()
        return jnp.where(i > j, 1.0, 0.0)

    def rows_and_columns(self):
        """Row and column of each element of a tile."""
        index = self.index
        return rows_to(plgpu.load(index, layout=PER_ROW)), columns_to(plgpu.load(index, layout=PER_COLUMN))

    def inverse(self):
        """(I + A)^-1 (64, 64) float32."""
        a = self.weighted()
        if "beta" in self.given:
            a = a * rows_to(self.per_row("beta"))
        return inverse_of_chunk.inverse(self.r, self.rows, self.mma, a, self.index[0])

    def borders(self):
        """exp(G) and exp(G_c - G), (64,)."""
        sums, total = self.per_row("log2"), self.shared("log2")[CHUNK - 1]
        return jnp.exp2(sums), jnp.exp2(total - sums)


def transform(x: Array, beta: Array | None, log2: Array | None, *, sizes, interpret=None):
    """mix (b, n, h, 64, 64) bfloat16; for keys also read, and with decays write, as tiles, by name."""
    b, h, n = sizes

    def chunk(c: InChunk):
        mix = c.inverse()
        if beta is not None:
            mix = mix * columns_to(plgpu.load(c.shared("beta"), layout=PER_COLUMN))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        c.r.mix_s[0] = mix.astype(jnp.bfloat16)
        if not c.from_keys:
            return
        for i in range(c.width):
            keys = load(c.tile("x", i))
            if log2 is None:
                c.r.read_s[i] = (-keys).astype(jnp.bfloat16)
                continue
            since, until = c.borders()
            c.r.read_s[i] = (keys * rows_to(-since)).astype(jnp.bfloat16)
            c.r.write_s[i] = (keys * rows_to(until)).astype(jnp.bfloat16)

    outputs = {"mix": Array(jax.ShapeDtypeStruct((b, n, h, CHUNK, CHUNK), jnp.bfloat16), 1)}
    if len(x.value.shape) == 4:
        outputs["read"] = like(x)
        if log2 is not None:
            outputs["write"] = like(x)
    inputs = {"x": x, "beta": beta, "log2": log2}
    return by_chunk("forward", chunk, inputs, outputs, {}, sizes=sizes, stages=2, interpret=interpret)


def forward(x, beta, log_decay, *, interpret=None):
    """Forward pass (contract in `api.py`)."""
    sizes, inputs = arrays_of(x, beta, log_decay)
    found = transform(**inputs, sizes=sizes, interpret=interpret)

    def keys(name):
        return found[name].reshape(x.shape) if name in found else None

    if log_decay is None:
        return found["mix"], keys("read"), None, None
    keep = jnp.exp2(inputs["log2"].value[..., CHUNK - 1 :: CHUNK]).swapaxes(1, 2)
    keep = jnp.broadcast_to(keep[..., None], (*keep.shape, x.shape[3]))
    return found["mix"], keys("read"), keys("write"), keep


def arrays_of(x, beta, log_decay) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """b, h, n, and the arguments x, beta and log2 of `transform`."""
    b, h = x.shape[0], x.shape[2]
    if x.ndim == 5:
        return (b, h, x.shape[1]), {"x": Array(x, 1), "beta": numbers(beta), "log2": None}
    log2 = None if log_decay is None else numbers(log2_from_start(log_decay, CHUNK, x.shape[1]))
    return (b, h, x.shape[1] // CHUNK), {"x": tokens(x), "beta": numbers(beta), "log2": log2}


def halves(x):
    """`Array` of half tiles of (b, n 64, h, 64)."""
    return Array(x, 1, halves=True)
