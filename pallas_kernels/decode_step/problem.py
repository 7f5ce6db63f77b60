"""Problem descriptions of decode steps: one token per row, t = 1."""

import dataclasses
from typing import ClassVar

from pallas_kernels.short_conv.problem import Problem as ConvCall
from pallas_kernels.sliding_window.problem import Problem as WindowCall
from pallas_kernels.taylor_attention.problem import Problem as TaylorCall


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaylorProblem(TaylorCall):
    """A step of Taylor attention."""

    ON_MESH: ClassVar = "jax.shard_map"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowProblem(WindowCall):
    """A step of attention to a ring of `window` slots."""

    ON_MESH: ClassVar = "jax.shard_map"

    cache_dtype: str = "bfloat16"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvProblem(ConvCall):
    """A step of a short convolution."""

    ON_MESH: ClassVar = "jax.shard_map"

    def step_flops(self) -> float:
        """Operations of one token per row."""
        return self.forward_flops()

    def step_bytes(self) -> float:
        """The last w - 1 inputs, read and written."""
        return 2.0 * self.b * (self.w - 1) * self.d * self.item
