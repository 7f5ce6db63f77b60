"""Problem description of sliding-window attention."""

import dataclasses
from typing import ClassVar

from pallas_kernels.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Shape):
    """A call of sliding-window attention. FLOPs and bytes are for `past` = 0."""

    DIMENSIONS: ClassVar = (*Shape.DIMENSIONS, "window")
    ON_MESH: ClassVar = "sharded_sliding_window_attention"

    window: int
    past: int = 0
    """Keys before the queries."""
    start: bool = False
    """Whether some of these keys may be masked."""
    segments: bool = False
    """Whether segment_ids are given."""

    @property
    def unserved(self) -> str | None:
        if self.segments and self.past:
            return "segment_ids with tokens before, as on a sharded sequence"
        return super().unserved

    @property
    def seen(self) -> float:
        """Visible pairs of query and key per row and head: w per query, fewer for the first w - 1."""
        w = min(self.window, self.t)
        return float(w * self.t - w * (w - 1) // 2)

    def forward_flops(self) -> float:
        """2 k for the score and 2 v for the value of each visible pair."""
        return 2.0 * self.b * self.h * self.seen * (self.k + self.v)

    def backward_flops(self) -> float:
        """Score, dy.v, dq, dk and dv of each visible pair."""
        return 2.0 * self.b * self.h * self.seen * (3 * self.k + 2 * self.v)

    def backward_bytes(self) -> float:
        """q, k, v, dy in, dq, dk, dv out, once."""
        return 2 * self.forward_bytes() - float(self.item * self.b * self.t * self.h * self.v)

    def step_flops(self) -> float:
        """FLOPs of one token with a full cache."""
        return 2.0 * self.b * self.h * self.window * (self.k + self.v)

    def step_bytes(self) -> float:
        """The cache, in `dtype`; q, y and the new token are 1 / window of it."""
        return float(self.item * self.b * self.kv_heads * self.window) * (self.k + self.v)
