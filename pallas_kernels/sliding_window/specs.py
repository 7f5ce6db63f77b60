"""Named workload shapes, shared by tests, benchmarks and compile checks."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from pallas_kernels.shape import Shape

BLOCK = 64
"""Rows of a matmul on tensor cores: a block of as many queries meets whole blocks of keys."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec(Shape):
    """One workload of sliding-window attention; a step reads a cache of `window` slots of `dtype`."""

    window: int

    @property
    def keys_met(self) -> int:
        """Keys that a block of queries meets, masked ones included: its own block and those that hold window - 1."""
        return BLOCK * (1 + -(-(self.window - 1) // BLOCK))

    def forward_flops(self) -> float:
        """Scores and their product with the values: 2 (k + v) for each token, head and key met."""
        return float(self.b * self.t * self.h) * 2 * self.keys_met * (self.k + self.v)

    def backward_flops(self) -> float:
        """Scores, the cotangents of the weights, dq, dk and dv."""
        return float(self.b * self.t * self.h) * 2 * self.keys_met * (3 * self.k + 2 * self.v)

    def step_flops(self) -> float:
        """Scores of one query and their product with the values."""
        return 2.0 * self.b * self.h * self.window * (self.k + self.v)

    def step_bytes(self) -> float:
        """The cache, read once."""
        return float(self.b * self.kv_heads * self.window * (self.k + self.v)) * jnp.dtype(self.dtype).itemsize


PAPER: dict[str, Any] = {"h": 16, "k": 64, "v": 64}
"""Heads and widths of Based's kernel benchmarks."""

HEADLINE = {f"b4_h16_t8192_w{w}": Spec(b=4, t=8192, window=w, **PAPER) for w in (64, 128)}
"""The shapes of the floors in README.md."""

FIGURE_7 = {f"fig7_b{b}_t1024_w64": Spec(b=b, t=1024, window=64, **PAPER) for b in (1, 4, 16, 64, 128, 256)}
"""Based, Fig. 7: batch, at 1024 tokens."""

WINDOWS = {f"b4_h16_t8192_w{w}": Spec(b=4, t=8192, window=w, **PAPER) for w in (16, 32, 64, 128, 256, 512, 1024)}
"""Based, Fig. 1 left: cost against window."""

STEP = {f"step_b{b}_w64": Spec(b=b, t=1, window=64, **PAPER) for b in (1, 4, 16, 64, 128, 256)}
"""Decoding, by batch."""

STEP_WINDOWS = {f"step_b64_w{w}": Spec(b=64, t=1, window=w, **PAPER) for w in (16, 32, 64, 128, 256, 512, 1024)}
"""Decoding, by window."""

CPU = {
    "mqar_t64_w16": Spec(b=64, t=64, h=1, k=64, v=64, window=16, dtype=jnp.float32),
    "mqar_t256_w32": Spec(b=64, t=256, h=1, k=64, v=64, window=32, dtype=jnp.float32),
    "text_t2048_w64": Spec(b=4, t=2048, h=16, k=64, v=64, window=64, dtype=jnp.float32),
}
"""What `xla` is timed with on a CPU."""

CPU_LENGTH = {
    f"cpu_t{t}_w64": Spec(b=1, t=t, h=4, k=64, v=64, window=64, dtype=jnp.float32) for t in (256, 512, 1024, 2048, 4096)
}
"""Length, on a CPU: the banded form against the quadratic one."""

TINY = {
    "tiny": Spec(b=1, t=70, h=3, k=3, v=3, window=20, dtype=jnp.float32),
    "tiny_grouped": Spec(b=2, t=33, h=4, g=2, k=4, v=4, window=5, dtype=jnp.float32),
}
"""For tests."""
