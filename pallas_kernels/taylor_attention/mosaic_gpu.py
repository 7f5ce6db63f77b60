"""Taylor attention on Hopper, forward, and the frame that the forward, dq and dkdv kernels share.

With s_ij = scale q_i.k_j: y_i = sum_{j <= i} (1 + s + s^2/2) v_j / den_i, den_i = the sum of weights + eps. Inside a
chunk of 64 the weights are formed as written; earlier tokens enter through the state S before the chunk:
  y_i += phi_q(q_i) S,    den_i += n + x_i.z1 + x_i^T Z2 x_i / 2  with x = scale q.

Two warpgroups share the chunks of a segment. Warpgroup 1 issues TMA, scans the state and publishes it, in parts of
bfloat16, before each chunk. Warpgroup 0 reads the published state and writes the results.

Pallas' own barriers, around each store to shared memory and before each copy, are off; these order the warps instead.
A store is followed by `commit_smem` (a fence towards wgmma and TMA, and a barrier) before it is read, and it follows a
barrier that every warp reaches after it has left what the store overwrites:
  features, x^T, u   two buffers; the next chunk or piece of features is written after the commit of this one, which
                     follows the wait for the products of the previous one, their last readers;
  published states   two buffers; after `s_empty`, on which every thread of warpgroup 0 arrives;
  staged results     after `wait_smem_to_gmem`, which ends in a barrier.
A slot of the ring is filled again after `empty`, on which every thread of warpgroup 0 arrives, and a commit. Every
thread that reads what `full` or `s_full` announces waits for it. Interpret mode, with one thread per warpgroup, cannot
check it.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.parts import Products, load, operand, tiles_of, transposed
from pallas_kernels.hopper.tiles import PER_COLUMN, PER_ROW, columns_to, launch, rows_to
from pallas_kernels.taylor_attention import mosaic_gpu_state as work
from pallas_kernels.taylor_attention.mosaic_gpu_layout import (
    CHUNK,
    TRAINING,
    Cut,
    Heads,
    Segments,
    Widths,
    border_states,
    choose_segments,
    decay_table,
    decayed_counts,
    join_values,
    pack_state,
    pad_minor,
    pad_time,
    split_scale,
    split_values,
    unpack_state,
    value_tiles,
    widths,
)
from pallas_kernels.taylor_attention.mosaic_gpu_state import BUFFERS, Block, Scanned, features, local_states, pull_back


@dataclasses.dataclass(frozen=True)
class ChunkStep:
    """One chunk of warpgroup 0. The state may be read between `wait_state` and `release`, streams until `release`."""

    refs: Any
    products: Products
    block: Block
    position: Any
    scale: float  # a power of two

    @property
    def widths(self) -> Widths:
        return self.block.widths

    @property
    def slot(self):
        return lax.rem(self.position, jnp.int32(self.widths.stages))

    @property
    def buffer(self):
        return lax.rem(self.position, jnp.int32(BUFFERS))

    def stream(self, name, layout):
        """A (64,) float32 stream in registers."""
        return plgpu.load(getattr(self.refs, f"{name}_s").at[self.slot], layout=layout)

    def tiles(self, *names):
        """Shared tiles of the parts of each stream."""
        return (tiles_of(getattr(self.refs, f"{name}_s").at[self.slot]) for name in names)

    def scaled(self, x):
        return x if self.scale == 1 else x * jnp.asarray(self.scale, x.dtype)

    def wait_state(self):
        plgpu.barrier_wait(self.refs.s_full.at[self.buffer])

    def state(self, cut: Cut, *, values_first: bool):
        """Parts of the state in the columns of a cut, (values, features) or (features, values)."""
        parts = range(self.widths.parts)
        state = tuple(self.refs.state_s.at[self.buffer, i, *self.widths.part(cut)] for i in parts)
        return state if values_first == self.widths.values_first else transposed(state)

    def add_z(self, acc, x):
        """acc += z1 + x Z2, summed over the parts that x^T had in the scan."""
        z, keys, parts = tiles_of(self.refs.state_z.at[self.buffer]), self.widths.keys, self.widths.parts
        for i in range(parts):
            start = 2 * i * keys
            self.products.registers(acc, x, [y.at[start : start + keys] for y in z], parts=parts - i)
            ones = [y.at[start + keys : start + 2 * keys] for y in z]
            self.products.tiles(acc, (self.refs.ones_s,), ones, parts=parts - i)

    def features(self, x, cut: Cut, *, halved: bool):
        """Columns of phi(x); halved: for queries."""
        return features(self.products.mma, x, self.widths, cut, halved=halved)

    def add_past(self, acc, x, *, halved: bool, first=None, factor=lambda phi: phi):
        """acc += factor(phi(x)) S, one product per cut of `Widths.read`, at most two in flight.

        first: features of the first cut, if they are known.
        """
        for i, cut in enumerate(self.widths.read):
            if i > 1:
                self.products.await_all_but_last()
            phi = self.features(x, cut, halved=halved) if first is None or i > 0 else first
            self.products.registers(acc, factor(phi), self.state(cut, values_first=False))

    def meets(self, *, query_axis: int):
        """Mask i >= j of query i and key j, and decay^(i - j) or None: (64, 64), queries on `query_axis`.

        Indices come from shared memory: computed ones would be hoisted and hold registers through the loop.
        """
        rows = rows_to(plgpu.load(self.refs.index_s, layout=PER_ROW))
        columns = columns_to(plgpu.load(self.refs.index_s, layout=PER_COLUMN))
        query, key = (rows, columns) if query_axis == 0 else (columns, rows)
        decay = self.block.decay
        return query >= key, None if decay is None else decay.between(query, key)

    def release(self):
        plgpu.barrier_arrive(self.refs.empty.at[self.slot])
        plgpu.barrier_arrive(self.refs.s_empty.at[self.buffer])


def pulled_accumulators(widths: Widths):
    """The first two accumulators of `PullBack`."""
    return [_accumulator(cut) for cut in widths.pulled[:2]]


def _accumulator(cut: Cut):
    return plgpu.ACC((CHUNK, cut[1] - cut[0]), jnp.float32)


class PullBack:
    """J(x)^T (rows S^T) of a chunk, one product per cut of `Widths.pulled`, at most two in flight.

    Other products may start between `first` and `rest`.
    """

    def __init__(self, chunk: ChunkStep, x, rows, accumulators, *, halved: bool):
        """Starts the first two products; x (64, keys) and rows (64, values) are in registers."""
        self.chunk, self.x, self.rows, self.accumulators, self.halved = chunk, x, rows, accumulators, halved
        self.cuts = chunk.widths.pulled
        for i, accumulator in enumerate(accumulators):
            self._start(i, accumulator)

    def first(self):
        """Result of the first cut, (64, keys) float32."""
        return self._pull(0, self.chunk.products.load(self.accumulators[0]), None)

    def rest(self, start):
        """Returns start + the result of the other cuts."""
        return self._from(1, self.accumulators[1], start)

    def _from(self, i: int, accumulator, start):
        """Returns start + the result of cuts i, i + 1, ..; an accumulator holds registers in its scope."""
        if i + 1 == len(self.cuts):
            return self._pull(i, self.chunk.products.load(accumulator), start)
        u = self.chunk.products.load(accumulator, alone=True)

        def run(following):
            self._start(i + 1, following)
            return self._from(i + 1, following, self._pull(i, u, start))

        return pl.run_scoped(run, _accumulator(self.cuts[i + 1]))

    def _start(self, i: int, accumulator):
        self.chunk.products.registers(accumulator, self.rows, self.chunk.state(self.cuts[i], values_first=True))

    def _pull(self, i: int, u, start):
        chunk = self.chunk
        return pull_back(chunk.products.mma, self.x, u, start, chunk.widths, self.cuts[i], halved=self.halved)


def paired_kernel(
    name, step, *, streams, scanned: Scanned, start, decay, scale, outputs, last, heads, segments, reverse, interpret,
    counts=None,
):  # fmt: skip
    """Runs step(ChunkStep, count) -> ({output: (64, .) values}, count) on every chunk; returns arrays by output name.

    streams: as for `stream_ring`; start: kernel states of `border_states`, where the scans of segments start; scale: of
    s, a power of two; outputs: name -> width of a (b, t, blocks, width) array of `Widths.dtype`, None: (b, blocks,
    padded t) float32; last: also return "s" and "z", the state after the scan of all segments; counts: (b, h, n_seg)
    float32 that steps pass on from chunk to chunk, or None.
    """

    widths = heads.widths

    def body(r):
        block = work.this_block(r, heads, segments, reverse=reverse)
        warpgroup = lax.axis_index("warpgroup")

        @pl.when(warpgroup == 1)
        def _():
            work.load_decay(r, block)
            ring = work.stream_ring(r, streams, block, r.empty)
            ring.start()
            work.wait_decay(r, block)
            state = work.load_start(r, block)
            state = work.scan_states(
                work.this_mma(r, interpret, widths, 1), r, scanned, ring, block, state, published=True
            )
            if last:

                @pl.when(block.segment == (0 if reverse else segments.count - 1))
                def _():
                    work.store_state(widths, r.s, r.z, (block.batch, block.head), state)

        @pl.when(warpgroup == 0)
        def _():
            work.write_constants(r)
            work.wait_decay(r, block)

            def chunk(position, count):
                plgpu.barrier_wait(r.full.at[lax.rem(position, jnp.int32(widths.stages))])
                products = Products(work.this_mma(r, interpret, widths, 0), widths.parts)
                results, count = step(ChunkStep(r, products, block, position, scale), count)
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                for output, x in results.items():
                    staged = getattr(r, f"{output}_o")
                    staged[...] = x.astype(staged.dtype)
                plgpu.commit_smem()
                row = block.row(position)
                for output, width in outputs.items():
                    index = block.along_time(row) if width is None else block.of_head(block.head)(row)
                    plgpu.copy_smem_to_gmem(getattr(r, f"{output}_o"), getattr(r, output).at[index])
                return count

            head = heads.of_query(block.head)
            lax.fori_loop(0, block.count, chunk, None if counts is None else r.counts[block.batch, head, block.segment])
            plgpu.wait_smem_to_gmem(0)

    s0, z0 = (None, None) if start is None else start
    b, t = streams["q"][0].shape[:2]
    blocks, f32, shape = heads.blocks, jnp.float32, jax.ShapeDtypeStruct
    results = {
        output: shape((b, blocks, segments.padded), f32) if w is None else shape((b, t, blocks, w), widths.dtype)
        for output, w in outputs.items()
    }
    if last:
        results["s"] = shape((b, blocks, *widths.state), f32)
        results["z"] = shape((b, blocks, CHUNK, widths.keys), f32)
    operands = {name: array for name, (array, _) in streams.items()}
    return launch(
        name,
        body,
        {**operands, "counts": counts, "s0": s0, "z0": z0, "decay": decay},
        results,
        {
            **work.stream_scratch(streams, widths),
            **{f"{output}_o": work.output_tile(width, widths.dtype) for output, width in outputs.items()},
            **work.state_scratch(widths, published=True, weighted=scanned.u_weight is not None or decay is not None),
            **work.decay_scratch(decay),
            **work.staging_scratch(interpret, widths, 2),
        },
        grid={"b": b, "h": blocks, "segment": segments.count},
        warpgroups=2,
        interpret=interpret,
    )


def _forward_step(chunk: ChunkStep, count, *, normalize, return_den, eps):
    """y of a chunk: the quadratic form within the chunk, plus the contribution of the state; count: tokens before."""
    products, decay, sizes = chunk.products, chunk.block.decay, chunk.widths
    q, k, v = chunk.tiles("q", "k", "v")
    x = chunk.scaled(load(q))
    since = None if decay is None else decay.since_start(PER_ROW)

    def run(scores, values, *others):
        """Awaits products in order: scores, z, past values, values of the chunk."""
        *past, z = others if normalize else (*others, None)
        products.tiles(scores, q, transposed(k))
        phi = chunk.features(x, sizes.read[0], halved=True)
        chunk.wait_state()
        if normalize:
            chunk.add_z(z, x * jnp.asarray(0.5, x.dtype))
        chunk.add_past(past[0] if past else values, x, halved=True, first=phi)
        weights = _weights(products.load(scores), chunk)
        products.registers(values, weights, v)
        den = None
        if normalize:
            before = (products.load(z) * x.astype(jnp.float32)).sum(axis=1) + count
            den = weights.sum(axis=1) + (before if since is None else before * since) + eps
        y = values[...]
        return (y + past[0][...] * rows_to(since, sizes.values) if past else y), den

    square, narrow, wide = (plgpu.ACC((CHUNK, n), jnp.float32) for n in (CHUNK, sizes.keys, sizes.values))
    y, den = pl.run_scoped(run, square, *[wide] * (1 if decay is None else 2), *[narrow] * normalize)
    chunk.release()
    count = count + np.float32(CHUNK) if decay is None else decay.next_count(count)
    results = {"y": y * rows_to(1.0 / den, sizes.values) if normalize else y}
    return results | ({"den": den} if return_den else {}), count


def _weights(scores, chunk: ChunkStep):
    """Weights 1 + s + s^2 / 2 = r^2 + 1/2 for i >= j, with r = (1 + s) / sqrt(2): two fused multiply-adds."""
    root = np.float32(0.5**0.5)
    r = scores * (root * np.float32(chunk.scale)) + root
    met, powers = chunk.meets(query_axis=0)
    weights = jnp.where(met, r * r + 0.5, 0.0)
    return weights if powers is None else weights * powers


class Forward(NamedTuple):
    """Results of `forward`, including the arrays that `backward` reads."""

    y: jax.Array  # (b, t, h, v) of q's dtype
    state: tuple[jax.Array, jax.Array] | None  # (b, h, f, v) and (b, h, f) float32 after the last token
    den: jax.Array | None  # (b, h, t) float32: sum of weights + eps
    borders: tuple[jax.Array, jax.Array] | None  # `border_states`


class Plan(NamedTuple):
    heads: Heads
    segments: Segments
    log_decay: jax.Array | None  # (h,)
    block_log_decay: jax.Array | None  # (h * tiles,)
    decay: jax.Array | None  # `decay_table`


def plan_blocks(q, k, v, decay, segments: int | None) -> Plan:
    """Cuts the problem into thread blocks: one per batch row, query head, tile of values and segment."""
    b, t, h, key_dim = q.shape
    heads = Heads(h, k.shape[2], value_tiles(key_dim, v.shape[-1], q.dtype), widths(key_dim, q.dtype))
    split = Segments(t, choose_segments(b * heads.blocks, t, TRAINING) if segments is None else segments)
    log_decay = None if decay is None else jnp.log(decay.astype(jnp.float32))
    per_block = None if decay is None else jnp.repeat(log_decay, heads.tiles)
    return Plan(heads, split, log_decay, per_block, decay_table(log_decay, t))


def kernel_operands(q, k, v, before: float):
    """Scales q by `before`, pads q, k to `Widths.keys` channels, cuts v into tiles, pads time for TMA, makes parts."""
    t, sizes = q.shape[1], widths(q.shape[3], q.dtype)
    q = q if before == 1 else q * jnp.asarray(before, q.dtype)
    q, k = pad_minor(q, sizes.keys), pad_minor(k, sizes.keys)
    return tuple(operand(pad_time(x, t), sizes.parts) for x in (q, k, split_values(v, sizes.values)))


def forward(
    q, k, v, *, scale=None, eps=1e-12, normalize=True, initial_state=None, decay=None, return_state=True,
    return_den=True, segments=None, interpret=None,
) -> Forward:  # fmt: skip
    """Taylor attention on Hopper; arguments as in `api.py`, t >= 1.

    A scale that is no power of two rounds scale * q to q's dtype. return_state, return_den: whether these are written;
    `backward` reads `den`. segments: blocks per head over which the sequence is split; None: the choice for training.
    """
    b, t, h, key_dim = q.shape
    value_dim = v.shape[-1]
    plan = plan_blocks(q, k, v, decay, segments)
    heads, split = plan.heads, plan.segments
    inside, before = split_scale(key_dim**-0.5 if scale is None else scale)
    q, k, v = kernel_operands(q, k, v, before)
    return_den = return_den and normalize
    boundary, count0 = None, jnp.zeros((b, h), jnp.float32)
    if initial_state is not None:
        boundary, count0 = pack_state(*initial_state, key_dim, heads.widths), initial_state[1][..., 0]
    streams = {"q": (q, heads.of_query), "k": (k, heads.of_key), "v": (v, heads.of_value)}
    scanned, options = Scanned("k", "v"), {"heads": heads, "segments": split, "reverse": False, "interpret": interpret}
    local = local_states(streams, scanned, plan.decay, **options)
    borders = border_states(local, boundary, plan.block_log_decay, segments=split, reverse=False)
    starts = [i * split.chunks_each * CHUNK for i in range(split.count)]
    counts = jnp.stack([decayed_counts(plan.log_decay, count0, n) for n in starts], -1)
    out = paired_kernel(
        "taylor_forward",
        functools.partial(_forward_step, normalize=normalize, return_den=return_den, eps=eps),
        streams=streams,
        scanned=scanned,
        start=borders,
        decay=plan.decay,
        scale=inside,
        outputs={"y": heads.widths.values} | ({"den": None} if return_den else {}),
        last=return_state,
        counts=counts,
        **options,
    )
    state, den = None, None
    if return_state:
        state = unpack_state(
            out["s"], out["z"], decayed_counts(plan.log_decay, count0, t), key_dim, value_dim, heads.widths
        )
    if return_den:
        den = out["den"][:, :: heads.tiles, :t]
    return Forward(join_values(out["y"][:, :t], h, value_dim), state, den, borders)
