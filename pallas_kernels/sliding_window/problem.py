"""Description of a call of sliding-window attention, in backends, tests and benchmarks."""

import dataclasses

import jax.numpy as jnp

from pallas_kernels.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Shape):
    """A call of sliding-window attention: what an objection may depend on, and what a floor follows from.

    FLOPs and bytes are those of a call without tokens before.
    """

    window: int
    past: int = 0
    """Keys before the queries."""
    start: bool = False
    """Whether some of them may not exist."""
    segments: bool = False
    """Whether there are segment_ids."""

    def sizes(self) -> dict[str, int | str]:
        """By dimension, for tables."""
        return super().sizes() | {"window": self.window}

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
        item = jnp.dtype(self.dtype).itemsize
        return 2 * self.forward_bytes() - float(item * self.b * self.t * self.h * self.v)

    def step_flops(self) -> float:
        """As `forward_flops`, for one token and a full cache."""
        return 2.0 * self.b * self.h * self.window * (self.k + self.v)

    def step_bytes(self) -> float:
        """The cache read, in `dtype`; q, y and the new token are 1 / window of it."""
        item = jnp.dtype(self.dtype).itemsize
        return float(item * self.b * self.kv_heads * self.window) * (self.k + self.v)
