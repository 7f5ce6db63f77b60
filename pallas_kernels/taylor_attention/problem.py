"""Problem description of Taylor attention."""

import dataclasses
from typing import ClassVar

from pallas_kernels.shape import Shape
from pallas_kernels.taylor_attention.features import n_features


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Shape):
    """A call of Taylor attention."""

    ON_MESH: ClassVar = "sharded_taylor_attention"

    kv_dtypes: tuple[str, str] | None = None
    """Dtypes of k and v; None: `dtype`."""
    chunk_size: int | None = None
    """Requested chunk length."""
    segments: bool = False
    """Whether segment_ids are given."""

    @property
    def unserved(self) -> str | None:
        if self.chunk_size is not None:
            return f"chunk_size={self.chunk_size} is an option of xla"
        if self.segments:
            return "segment_ids are served by xla alone"
        return super().unserved

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Dtypes of q, k, v."""
        k, v = self.kv_dtypes or (self.dtype_name, self.dtype_name)
        return self.dtype_name, k, v

    def forward_flops(self, chunk: int = 64) -> float:
        """Per token and head: 2 c (k + v) within chunks and 4 f v across them, or one chunk of all t."""
        return self._cheaper(chunk, block=2 * (self.k + self.v), across=4 * n_features(self.k) * self.v)

    def backward_flops(self, chunk: int = 64) -> float:
        """s, two cotangents of p v, dq, dk within chunks; U, W, dv and both states across them."""
        return self._cheaper(chunk, block=2 * (3 * self.k + 2 * self.v), across=10 * n_features(self.k) * self.v)

    def _cheaper(self, chunk: int, *, block: int, across: int) -> float:
        return float(self.b * self.t * self.h) * min(chunk * block + across, self.t * block)

    def step_flops(self) -> float:
        """Update and read of the state and the normalizer: 4 f (v + 1) per head."""
        return 4.0 * self.b * self.h * n_features(self.k) * (self.v + 1)

    def step_bytes(self) -> float:
        """The float32 state, read and written."""
        return 8.0 * self.b * self.h * n_features(self.k) * (self.v + 1)
