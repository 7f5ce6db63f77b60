"""Sliding-window attention on TPU: Pallas Mosaic kernels for windows of up to 256, heads side by side in the lanes.

With s_ij = scale q_i.k_j over the keys j that query i sees, P = softmax(s), dP_ij = dy_i.v_j:

    y_i = sum_j P_ij v_j,    lse_i = log sum_j exp(s_ij)
    dS_ij = P_ij (dP_ij - sum_j P_ij dP_ij),    dq_i = scale sum_j dS_ij k_j,    dk_j = scale sum_i dS_ij q_i,
    dv_j = sum_i P_ij dy_i

(Based, sec. 4.2 and App. B.2.2.) A grid step has a block of c >= window queries, its own keys and, kept in VMEM from
the step before, those of the block before: every operand is read once. Of the own keys a query sees those up to
itself, of the earlier ones only later columns: both fit into one (c, c) tile, of which the exponentials are taken.
Backward is one kernel as well: the part of dk and dv that a block's own queries send waits in VMEM for the part of the
next block's.

Blocks of tokens are (c, heads d) slices of (b, t, h d) arrays: no copy in another layout. bfloat16: P and dS are
rounded to it as operands, sums are float32. float32: products exact to float32.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.sliding_window.problem import Problem

LANES = 128
STEP_LANES, STEP_BYTES = 1024, 2**19
"""Lanes, and bytes of an operand, of a grid step at the most: its overhead wants many (arithmetic, not measured), and
twenty such operands fit in VMEM."""
HIDDEN = -1e30


class Geometry(NamedTuple):
    """Static sizes of a call."""

    b: int
    t: int
    s: int
    h: int
    d: int
    heads: int
    """Of a grid step."""
    window: int
    block: int
    scale: float

    @property
    def past_blocks(self) -> int:
        return -(-(self.s - self.t) // self.block)

    @property
    def front(self) -> int:
        """Rows in front of the first key."""
        return self.past_blocks * self.block - (self.s - self.t)

    @property
    def query_blocks(self) -> int:
        return -(-self.t // self.block)

    @property
    def key_blocks(self) -> int:
        return self.past_blocks + self.query_blocks

    def queries(self) -> pl.BlockSpec:
        return self._tokens(lambda step: jnp.clip(step - self.past_blocks, 0, self.query_blocks - 1))

    def keys(self) -> pl.BlockSpec:
        return self._tokens(lambda step: jnp.minimum(step, self.key_blocks - 1))

    def keys_before(self) -> pl.BlockSpec:
        return self._tokens(lambda step: jnp.maximum(step - 1, 0))

    def per_query(self) -> pl.BlockSpec:
        """Of a (b, h, t) array."""
        of_step = lambda step: jnp.clip(step - self.past_blocks, 0, self.query_blocks - 1)  # noqa: E731
        return pl.BlockSpec((1, self.heads, self.block), lambda b, h, step: (b, h, of_step(step)))

    def _tokens(self, of_step) -> pl.BlockSpec:
        return pl.BlockSpec((1, self.block, self.heads * self.d), lambda b, h, step: (b, of_step(step), h))

    def scratch(self, *dtypes):
        return [pltpu.VMEM((self.block, self.heads * self.d), dtype) for dtype in dtypes]


def block_of(window: int) -> int:
    return LANES if window <= LANES else 2 * LANES


def heads_of_step(h: int, d: int, window: int, dtype: str) -> int | None:
    """Heads that a grid step takes: all, or a multiple of 8 that divides them and fills its lanes; None: neither."""
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


def forward(q, k, v, start, segment_ids, *, window: int, scale: float, interpret: bool = False):
    """y (b, t, h, v), lse (b, h, t) float32; arguments as in `backends.py`, without segment_ids."""
    del segment_ids
    g = _geometry(q, k, window, scale)
    y, lse = pl.pallas_call(
        functools.partial(_forward_kernel, g=g),
        grid=(g.b, g.h // g.heads, g.key_blocks),
        in_specs=[_whole(), g.queries(), g.keys(), g.keys()],
        out_specs=[g.queries(), g.per_query()],
        out_shape=[_like(q, g.query_blocks * g.block), _per_query_struct(g)],
        scratch_shapes=g.scratch(q.dtype, q.dtype),
        compiler_params=_parameters(),
        name="sliding_window_forward",
        interpret=interpret,
    )(_first(start, g), _packed(q, 0, g), _packed(k, g.front, g), _packed(v, g.front, g))
    return y[:, : g.t].reshape(q.shape), lse[:, :, : g.t]


def backward(q, k, v, start, segment_ids, y, lse, dy, *, window: int, scale: float, interpret: bool = False):
    """dq, dk, dv in the dtypes of q, k, v; lse as `forward` returned it."""
    del segment_ids, y
    g = _geometry(q, k, window, scale)
    lse = jnp.pad(lse, ((0, 0), (0, 0), (0, g.query_blocks * g.block - g.t)))
    dq, dk, dv = pl.pallas_call(
        functools.partial(_backward_kernel, g=g),
        grid=(g.b, g.h // g.heads, g.key_blocks + 1),
        in_specs=[_whole(), g.queries(), g.keys(), g.keys(), g.queries(), g.per_query()],
        out_specs=[g.queries(), g.keys_before(), g.keys_before()],
        out_shape=[_like(x, n * g.block) for x, n in ((q, g.query_blocks), (k, g.key_blocks), (v, g.key_blocks))],
        scratch_shapes=g.scratch(q.dtype, q.dtype, jnp.float32, jnp.float32),
        compiler_params=_parameters(),
        name="sliding_window_backward",
        interpret=interpret,
    )(
        _first(start, g), _packed(q, 0, g), _packed(k, g.front, g), _packed(v, g.front, g), _packed(dy, 0, g), lse
    )  # fmt: skip
    keys = slice(g.front, g.front + g.s)
    return dq[:, : g.t].reshape(q.shape), dk[:, keys].reshape(k.shape), dv[:, keys].reshape(v.shape)


def _forward_kernel(first, q_ref, k_ref, v_ref, y_ref, lse_ref, k_before, v_before, *, g: Geometry):
    row, step = pl.program_id(0), pl.program_id(2)

    @pl.when(step == 0)
    def _():
        k_before[...], v_before[...] = jnp.zeros_like(k_before), jnp.zeros_like(v_before)

    @pl.when(step >= g.past_blocks)
    def _():
        own, seen = _masks(first[row], step, g)
        all_lse = jnp.zeros((g.block, LANES), jnp.float32)
        for head in range(g.heads):
            lanes = pl.ds(head * g.d, g.d)
            q = q_ref[0, :, lanes]
            scores = _folded(own, q, k_ref[0, :, lanes], k_before[:, lanes])
            scores = jnp.where(seen, g.scale * scores, HIDDEN)
            highest = scores.max(axis=1, keepdims=True)
            p = jnp.exp(scores - highest)
            total = p.sum(axis=1, keepdims=True)
            y = _unfolded(own, p, v_ref[0, :, lanes], v_before[:, lanes]) / total
            y_ref[0, :, lanes] = y.astype(y_ref.dtype)
            lane = lax.broadcasted_iota(jnp.int32, all_lse.shape, 1)
            all_lse = jnp.where(lane == head, highest + jnp.log(total), all_lse)
        lse_ref[0] = all_lse.T[: g.heads]

    k_before[...], v_before[...] = k_ref[0], v_ref[0]


def _backward_kernel(
    first, q_ref, k_ref, v_ref, dy_ref, lse_ref, dq_ref, dk_ref, dv_ref, k_before, v_before, dk_before, dv_before, *, g
):
    """Step i has the queries of key block i; it finishes dk and dv of block i - 1. The last step has no queries."""
    row, step = pl.program_id(0), pl.program_id(2)
    has_queries = (step >= g.past_blocks) & (step < g.key_blocks)

    @pl.when(step == 0)
    def _():
        for ref in (k_before, v_before, dk_before, dv_before):
            ref[...] = jnp.zeros_like(ref)

    @pl.when(has_queries)
    def _():
        own, seen = _masks(first[row], step, g)
        lse = lse_ref[0].T
        for head in range(g.heads):
            lanes = pl.ds(head * g.d, g.d)
            q, dy, k = q_ref[0, :, lanes], dy_ref[0, :, lanes], k_ref[0, :, lanes]
            scores = g.scale * _folded(own, q, k, k_before[:, lanes])
            p = jnp.exp(jnp.where(seen, scores - lse[:, head : head + 1], HIDDEN))
            dp = _folded(own, dy, v_ref[0, :, lanes], v_before[:, lanes])
            ds = p * (dp - (p * dp).sum(axis=1, keepdims=True)) * g.scale
            dq_ref[0, :, lanes] = _unfolded(own, ds, k, k_before[:, lanes]).astype(dq_ref.dtype)
            for out, before, x, weights in ((dk_ref, dk_before, q, ds), (dv_ref, dv_before, dy, p)):
                of_own, of_before = _split(own, weights, x.dtype)
                out[0, :, lanes] = (before[:, lanes] + _matmul("ij,id->jd", of_before, x)).astype(out.dtype)
                before[:, lanes] = _matmul("ij,id->jd", of_own, x)

    @pl.when(jnp.logical_not(has_queries))
    def _():
        dk_ref[0], dv_ref[0] = dk_before[...].astype(dk_ref.dtype), dv_before[...].astype(dv_ref.dtype)

    k_before[...], v_before[...] = k_ref[0], v_ref[0]


def _masks(first, step, g: Geometry):
    """Of the (c, c) tile: where it holds own keys, elsewhere those of the block before; where the key is seen."""
    shape = (g.block, g.block)
    i, j = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    own = j <= i
    in_window = jnp.where(own, i - j, i - j + g.block) < g.window
    exists = j >= first - g.block * step + jnp.where(own, 0, g.block)
    return own, in_window & exists


def _folded(own, x, of_own, of_before):
    """x times the transposed own rows and rows before, as one tile."""
    return jnp.where(own, _matmul("id,jd->ij", x, of_own), _matmul("id,jd->ij", x, of_before))


def _unfolded(own, tile, of_own, of_before):
    """The parts of a tile times the own rows and the rows before."""
    at_own, at_before = _split(own, tile, of_own.dtype)
    return _matmul("ij,jd->id", at_own, of_own) + _matmul("ij,jd->id", at_before, of_before)


def _split(own, tile, dtype):
    return jnp.where(own, tile, 0.0).astype(dtype), jnp.where(own, 0.0, tile).astype(dtype)


def _matmul(spec: str, x, y):
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    return jnp.einsum(spec, x, y, precision=precision, preferred_element_type=jnp.float32)


def _geometry(q, k, window, scale) -> Geometry:
    b, t, h, d = q.shape
    heads = heads_of_step(h, d, window, q.dtype.name)
    assert heads is not None  # the objection
    return Geometry(b, t, k.shape[1], h, d, heads, window, block_of(window), scale)


def _packed(x, front: int, g: Geometry):
    """(b, n, h, d) -> (b, whole blocks, h d), `front` rows before the first."""
    rows = front + x.shape[1]
    x = x.reshape(*x.shape[:2], -1)
    return x if rows % g.block == 0 and not front else jnp.pad(x, ((0, 0), (front, -rows % g.block), (0, 0)))


def _first(start, g: Geometry):
    """(b,) int32: the first key that exists, counted with the rows in front."""
    start = jnp.zeros((g.b,), jnp.int32) if start is None else jnp.maximum(start.astype(jnp.int32), 0)
    return start + g.front


def _whole() -> pl.BlockSpec:
    return pl.BlockSpec(memory_space=pltpu.SMEM)


def _like(x, rows: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((x.shape[0], rows, x.shape[2] * x.shape[3]), x.dtype)


def _per_query_struct(g: Geometry) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((g.b, g.h, g.query_blocks * g.block), jnp.float32)


def _parameters() -> pltpu.CompilerParams:
    return pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))
