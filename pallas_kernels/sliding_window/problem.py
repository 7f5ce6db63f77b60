"""Description of a call of sliding-window attention, in backends, tests and benchmarks."""

import dataclasses
from typing import ClassVar

from pallas_kernels.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Shape):
    """A call of sliding-window attention. FLOPs and bytes are those of a call without tokens before."""

    DIMENSIONS: ClassVar = (*Shape.DIMENSIONS, "window")
    ON_MESH: ClassVar = "sharded_sliding_window_attention"

    window: int
    past: int = 0
    """Keys before the queries."""
    start: bool = False
    """Whether some of them may not exist."""
    segments: bool = False
    """Whether there are segment_ids."""

    @property
    def unserved(self) -> str | None:
        if self.segments and self.past:
            return "segment_ids with tokens before, as on a sharded sequence"
        return super().unserved

    @property
    def seen(self) -> float:
        """Pairs of a query and a key that it sees, of one row and head: w each, fewer for the first w - 1."""
        w = min(self.window, self.t)
        return float(w * self.t - w * (w - 1) // 2)

    def forward_flops(self) -> float:
        """2 k for the score and 2 v for the value of each pair: the floor, of no masked pair."""
        return 2.0 * self.b * self.h * self.seen * (self.k + self.v)

    def backward_flops(self) -> float:
        """The score again and dy.v, then dq, dk, dv, once for each pair."""
        return 2.0 * self.b * self.h * self.seen * (3 * self.k + 2 * self.v)

    def backward_bytes(self) -> float:
        """q, k, v, dy in, dq, dk, dv out, once: the weights and their sums follow from them."""
        return 2 * self.forward_bytes() - float(self.item * self.b * self.t * self.h * self.v)

    def step_flops(self) -> float:
        """As `forward_flops`, for one token and a full cache."""
        return 2.0 * self.b * self.h * self.window * (self.k + self.v)

    def step_bytes(self) -> float:
        """The cache read, in `dtype`; q, y and the new token are 1 / window of it."""
        return float(self.item * self.b * self.kv_heads * self.window) * (self.k + self.v)
