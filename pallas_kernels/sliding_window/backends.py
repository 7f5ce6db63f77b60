"""The implementations of sliding-window attention, behind one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(q, k, v, start, segment_ids, *, window, scale)                     -> y, lse
    backward(q, k, v, start, segment_ids, y, lse, dy, *, window, scale)        -> dq, dk, dv

t >= 1; q (b, t, h, k), k (b, s, g, k), v (b, s, g, v), of one dtype; y and dy (b, t, h, v); dk and dv, of the shapes
of k and v, are summed over the query heads that share a head. The keys start `past = s - t` tokens before the
queries, 0 <= past < window <= s. Query i sees key j where

    i + past - window < j <= i + past,    j >= start[row],    segment_ids[row, j] = segment_ids[row, i + past]

start (b,) int32 <= past, or None: all keys exist. segment_ids (b, s) int32, or None. Every query sees itself. lse
(b, h, t) float32 is the natural logarithm of sum_j exp(scale q_i.k_j) over the keys that i sees.
"""

import dataclasses

from pallas_kernels.dispatch import Backend, mesh_objection
from pallas_kernels.sliding_window import xla

KERNELS = (("tpu", "splash_tpu"),)
"""What is chosen on which platform, where it serves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """What an objection may depend on: shapes, dtype, window, and which of the operands there are."""

    b: int
    t: int
    past: int
    h: int
    g: int
    k: int
    v: int
    window: int
    dtype: str
    start: bool
    segments: bool


def _splash_objection(p: Problem) -> str | None:
    if p.dtype not in ("bfloat16", "float32"):
        return f"dtype of q, k, v is {p.dtype}, not bfloat16 or float32"
    if p.k % 64 or p.v % 64:
        return f"head_dims {p.k} and {p.v} are not multiples of 64"
    if p.b * p.h == 0:
        return f"batch {p.b} or heads {p.h} are 0"
    return mesh_objection("sharded_sliding_window_attention")


def _splash_forward(*operands, **options):
    from pallas_kernels.sliding_window import splash_tpu

    return splash_tpu.forward(*operands, **options)


def _splash_backward(*operands, **options):
    from pallas_kernels.sliding_window import splash_tpu

    return splash_tpu.backward(*operands, **options)


BACKENDS = {
    "xla": Backend(lambda problem: None, xla.forward, xla.backward),
    "splash_tpu": Backend(_splash_objection, _splash_forward, _splash_backward),
}
