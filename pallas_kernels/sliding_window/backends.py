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

from pallas_kernels.dispatch import Backend
from pallas_kernels.sliding_window import xla

KERNELS: tuple[tuple[str, str], ...] = ()
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


BACKENDS = {"xla": Backend(lambda problem: None, xla.forward, xla.backward)}
