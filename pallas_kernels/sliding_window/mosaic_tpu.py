"""Sliding-window attention on TPU: Pallas Mosaic kernels for windows of up to 256, heads side by side in the lanes.

With s_ij = scale q_i.k_j over the keys j that query i sees, P = softmax(s), dP_ij = dy_i.v_j:

    y_i = sum_j P_ij v_j,    lse_i = log sum_j exp(s_ij)
    dS_ij = P_ij (dP_ij - sum_j P_ij dP_ij),    dq_i = scale sum_j dS_ij k_j,    dk_j = scale sum_i dS_ij q_i,
    dv_j = sum_i P_ij dy_i

(Based, sec. 4.2 and App. B.2.2.) A grid step has a block of queries, its own keys, and the visible earlier keys, kept
in VMEM from the previous step: every operand is read once. Backward is one kernel: sums of dk and dv from a block's own
queries wait in VMEM for the next block's.

Scores are transposed (`mosaic_tpu_tiles`). Each step of the computation is written for several tiles before the next
one, because matmuls are issued in program order. bfloat16: P and dS are rounded as operands, sums are float32.
"""

import functools
import operator

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.sliding_window.mosaic_tpu_layout import CHUNK, Geometry, objection
from pallas_kernels.sliding_window.mosaic_tpu_tiles import (
    LOG2_E,
    Folding,
    Softmax,
    chunk,
    dot,
    dot_transposed,
    each,
    per_head,
    per_tile,
    score_gradients,
    units_of,
)

__all__ = ["backward", "forward", "objection"]

FORWARD_TILES, BACKWARD_TILES = 16, 8
"""Tiles of queries and heads that are computed together, chosen from schedules for v5e and v6e."""


def forward(q, k, v, start, segment_ids, *, window: int, scale: float, interpret: bool = False):
    """y (b, t, h, v), lse (b, h, t) float32; arguments: see `api.py`; no segment_ids."""
    del segment_ids
    g = Geometry.of(q, k, window, scale)
    y, lse = pl.pallas_call(
        functools.partial(_forward_kernel, g=g),
        grid=(g.b, g.h // g.heads, g.key_blocks),
        in_specs=[_whole(), g.queries(), g.keys(), g.keys()],
        out_specs=[g.queries(), g.per_query()],
        out_shape=[_like(q, g.query_blocks * g.block), g.per_query_struct()],
        scratch_shapes=[g.chunks_before(k.dtype), g.chunks_before(v.dtype)],
        compiler_params=_parameters(),
        name="sliding_window_forward",
        interpret=interpret,
    )(g.first(start), g.packed(q), g.packed(k, g.front), g.packed(v, g.front))
    return y[:, : g.t].reshape(q.shape), lse[:, :, : g.t]


def backward(q, k, v, start, segment_ids, y, lse, dy, *, window: int, scale: float, interpret: bool = False):
    """dq, dk, dv in the dtypes of q, k, v; lse from `forward`."""
    del segment_ids, y
    g = Geometry.of(q, k, window, scale)
    lse = jnp.pad(lse, ((0, 0), (0, 0), (0, g.query_blocks * g.block - g.t)))
    dq, dk, dv = pl.pallas_call(
        functools.partial(_backward_kernel, g=g),
        grid=(g.b, g.h // g.heads, g.key_blocks + 1),
        in_specs=[_whole(), g.queries(), g.keys(), g.keys(), g.queries(), g.per_query()],
        out_specs=[g.queries(), g.keys_before(), g.keys_before()],
        out_shape=[_like(x, n * g.block) for x, n in ((q, g.query_blocks), (k, g.key_blocks), (v, g.key_blocks))],
        scratch_shapes=[g.chunks_before(k.dtype), g.chunks_before(v.dtype), g.block_before(), g.block_before()],
        compiler_params=_parameters(),
        name="sliding_window_backward",
        interpret=interpret,
    )(g.first(start), g.packed(q), g.packed(k, g.front), g.packed(v, g.front), g.packed(dy), lse)
    keys = slice(g.front, g.front + g.s)
    return dq[:, : g.t].reshape(q.shape), dk[:, keys].reshape(k.shape), dv[:, keys].reshape(v.shape)


def _forward_kernel(first, q_ref, k_ref, v_ref, y_ref, lse_ref, k_before, v_before, *, g: Geometry):
    row, step = pl.program_id(0), pl.program_id(2)

    @pl.when(step == 0)
    def _():
        k_before[...], v_before[...] = jnp.zeros_like(k_before), jnp.zeros_like(v_before)

    @pl.when(step >= g.past_blocks)
    def _():
        foldings = _foldings(first[row], step, g)
        lse = [[] for _ in foldings]
        for stage in g.stages(FORWARD_TILES):
            units = units_of(stage, foldings, g)
            scores = [dot_transposed(u.met(k_ref, k_before), u.queries(q_ref)) for u in units]
            softmax = each(lambda u, x: Softmax.of(u.folding.exponents(x, g.scale)), units, scores)
            p = each(lambda u, x: u.folding.unfold(x.weights, v_ref.dtype), units, softmax)
            y = each(lambda u, x: dot(u.met(v_ref, v_before).T, x), units, p)
            for u, x, of in zip(units, y, softmax, strict=True):
                u.store(y_ref, (x * (1.0 / of.total)).astype(y_ref.dtype).T)
                lse[u.i].append(of.lse)
        lse_ref[...] = per_head([jnp.concatenate(x) for x in lse], g)

    _keep(k_ref, k_before)
    _keep(v_ref, v_before)


def _backward_kernel(
    first, q_ref, k_ref, v_ref, dy_ref, lse_ref, dq_ref, dk_ref, dv_ref, k_before, v_before, dk_before, dv_before, *, g
):
    """Step i has the queries of key block i, and completes dk and dv of block i - 1; the last has no queries."""
    row, step = pl.program_id(0), pl.program_id(2)
    has_queries = (step >= g.past_blocks) & (step < g.key_blocks)

    @pl.when(step == 0)
    def _():
        for ref in (k_before, v_before, dk_before, dv_before):
            ref[...] = jnp.zeros_like(ref)

    @pl.when(has_queries)
    def _():
        foldings = _foldings(first[row], step, g)
        lse = per_tile(LOG2_E * lse_ref[...], g)
        for stage in g.stages(BACKWARD_TILES):
            units = units_of(stage, foldings, g)
            queries, dy = [u.queries(q_ref) for u in units], [u.queries(dy_ref) for u in units]
            keys = [u.met(k_ref, k_before) for u in units]
            scores = each(dot_transposed, keys, queries)
            dp = each(lambda u, x: dot_transposed(u.met(v_ref, v_before), x), units, dy)
            exponents = each(lambda u, x: u.folding.exponents(x, g.scale), units, scores)
            p = each(
                lambda u, tiles: [jnp.exp2(x - lse[u.i][u.number : u.number + 1]) for x in tiles], units, exponents
            )
            ds = each(lambda u, x, y: score_gradients(x, u.folding.fold(y), g.scale), units, p, dp)
            p, ds = (each(lambda u, x: u.folding.unfold(x, q_ref.dtype), units, x) for x in (p, ds))
            dv, dk = each(dot, p, dy), each(dot, ds, queries)
            dq = each(lambda k, ds: dot(k.T, ds), keys, ds)
            for u, x in zip(units, dq, strict=True):
                u.store(dq_ref, x.astype(dq_ref.dtype).T)
            for n in range(0, len(units), g.chunks):
                _send(dk[n : n + g.chunks], dk_ref, dk_before, units[n].lanes, g)
                _send(dv[n : n + g.chunks], dv_ref, dv_before, units[n].lanes, g)

    @pl.when(jnp.logical_not(has_queries))
    def _():
        dk_ref[...], dv_ref[...] = dk_before[...].astype(dk_ref.dtype), dv_before[...].astype(dv_ref.dtype)

    _keep(k_ref, k_before)
    _keep(v_ref, v_before)


def _send(parts, out, before, lanes, g: Geometry):
    """Adds the (keys, lanes) gradients of each chunk of queries; completes the previous block, keeps sums of this."""
    if finished := g.block - CHUNK * g.farthest:
        out[:finished, lanes] = before[:finished, lanes].astype(out.dtype)
    for j in range(-g.farthest, g.chunks):
        sent = [x[chunk(j - i + g.farthest)] for i, x in enumerate(parts) if 0 <= i - j <= g.farthest]
        rows = chunk(j + g.chunks if j < 0 else j)
        summed = functools.reduce(operator.add, sent)
        if j < 0:
            out[rows, lanes] = (before[rows, lanes] + summed).astype(out.dtype)
        else:
            before[rows, lanes] = summed


def _foldings(first_key, step, g: Geometry):
    return [Folding.of(first_key, g.block * step + CHUNK * i, g) for i in range(g.chunks)]


def _keep(ref, before):
    """Keeps the last rows of a block for the next step."""
    before[...] = ref[ref.shape[0] - before.shape[0] :]


def _whole() -> pl.BlockSpec:
    return pl.BlockSpec(memory_space=pltpu.SMEM)


def _like(x, rows: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((x.shape[0], rows, x.shape[2] * x.shape[3]), x.dtype)


def _parameters() -> pltpu.CompilerParams:
    return pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))
