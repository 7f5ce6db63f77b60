"""Named workload shapes, shared by tests, benchmarks and compile checks."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from pallas_kernels.shape import Shape
from pallas_kernels.taylor_attention.features import n_features


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec(Shape):
    """One workload of Taylor attention."""

    def forward_flops(self, chunk: int = 64) -> float:
        """2 c (k + v) in whole (c, c) blocks and 4 f v across chunks, a token and head; or one block of all t."""
        return self._cheaper(chunk, block=2 * (self.k + self.v), across=4 * n_features(self.k) * self.v)

    def backward_flops(self, chunk: int = 64) -> float:
        """s, p v's two cotangents, dq, dk once within blocks; U, W, dv and both states across them."""
        return self._cheaper(chunk, block=2 * (3 * self.k + 2 * self.v), across=10 * n_features(self.k) * self.v)

    def _cheaper(self, chunk: int, *, block: int, across: int) -> float:
        return float(self.b * self.t * self.h) * min(chunk * block + across, self.t * block)

    def step_flops(self) -> float:
        """Update and read of the state and of its normaliser: 4 f (v + 1) a head."""
        return 4.0 * self.b * self.h * n_features(self.k) * (self.v + 1)

    def step_bytes(self) -> float:
        """The float32 state, read and written."""
        return 8.0 * self.b * self.h * n_features(self.k) * (self.v + 1)


PAPER: dict[str, Any] = {"h": 16, "k": 16, "v": 64}
"""Heads and widths of Based's kernel benchmarks."""

HEADLINE = {"b4_h16_t8192": Spec(b=4, t=8192, **PAPER)}
"""The shape of the floors in README.md."""

FIGURE_5_BATCH = {f"fig5_b{b}_t1024": Spec(b=b, t=1024, **PAPER) for b in (1, 4, 16, 64, 128, 256)}
"""Based, Fig. 5 left: batch, at 1024 tokens."""

FIGURE_5_LENGTH = {f"fig5_b4_t{t}": Spec(b=4, t=t, **PAPER) for t in (1024, 2048, 4096, 8192, 16384, 32768)}
"""Based, Fig. 5 right: length, at batch 4."""

STEP = {f"step_b{b}": Spec(b=b, t=1, **PAPER) for b in (1, 4, 16, 64, 128, 256)}
"""Decoding, by batch."""

CPU = {
    "mqar_t64": Spec(b=64, t=64, h=1, k=16, v=64, dtype=jnp.float32),
    "mqar_t256": Spec(b=64, t=256, h=1, k=16, v=64, dtype=jnp.float32),
    "text_t2048": Spec(b=4, t=2048, h=16, k=16, v=64, dtype=jnp.float32),
}
"""What `xla` is timed with on a CPU."""

CPU_LENGTH = {f"cpu_b1_h4_t{t}": Spec(b=1, t=t, h=4, k=16, v=64, dtype=jnp.float32) for t in (64, 256, 1024, 4096)}
"""Length, on a CPU: where the memory of other forms grows."""

TINY = {
    "tiny": Spec(b=1, t=70, h=3, k=3, v=5, dtype=jnp.float32),
    "tiny_grouped": Spec(b=2, t=33, h=4, g=2, k=4, v=3, dtype=jnp.float32),
}
"""For tests."""

SPECS = HEADLINE | FIGURE_5_BATCH | FIGURE_5_LENGTH | STEP | CPU | CPU_LENGTH | TINY
