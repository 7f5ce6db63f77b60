"""Problem description of the selective scan."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.shape import Call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Call):
    """A call of the selective scan."""

    DIMENSIONS: ClassVar = ("b", "t", "d", "n")
    NONZERO: ClassVar = {"b": "batch", "d": "channels", "n": "numbers of state"}
    ON_MESH: ClassVar = "sharded_selective_scan"

    d: int
    """Channels."""
    n: int
    """Numbers of state per channel."""
    delta_dtype: DTypeLike = jnp.float32

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Normal x, b and c, and delta log-uniform in [0.001, 0.1], as Mamba initialises it: x, delta, b, c."""
        keys = jax.random.split(jax.random.key(seed), 4)
        x, b, c = (self.normal(key, size) for key, size in zip(keys[:3], (self.d, self.n, self.n), strict=True))
        tokens = (self.b, self.t, self.d)
        log_delta = jax.random.uniform(keys[3], tokens, jnp.float32, math.log(0.001), math.log(0.1))
        return x, jnp.exp(log_delta).astype(self.delta_dtype), b, c

    def rates(self) -> jax.Array:
        """a (d, n), -1 to -n in every channel, as Mamba initialises it."""
        return -jnp.tile(jnp.arange(1, self.n + 1, dtype=jnp.float32)[None], (self.d, 1))

    def forward_bytes(self) -> float:
        """x, delta, b, c and a in, y out, once."""
        tokens = self.d * (2 * self.item + self._delta_item) + 2 * self.n * self.item
        return float(self.b * self.t) * tokens + 4 * self.d * self.n

    def backward_bytes(self) -> float:
        """x, delta, dy, b, c and a in, dx, ddelta, db, dc and da out, once."""
        tokens = self.d * (3 * self.item + 2 * self._delta_item) + 4 * self.n * self.item
        return float(self.b * self.t) * tokens + 8 * self.d * self.n

    @property
    def _delta_item(self) -> int:
        return jnp.dtype(self.delta_dtype).itemsize

    def exponentials(self) -> float:
        """Number of decays exp(delta a) in a pass, which may limit a kernel instead of bytes."""
        return float(self.b * self.t) * self.d * self.n

    def forward_flops(self) -> float:
        """Per number of state: delta a, (delta x) b, 2 for the state, 2 for the output; no matmul."""
        return 6 * self.exponentials()

    def backward_flops(self) -> float:
        """Recomputed states, and 10 per number of state for gradients."""
        return 14 * self.exponentials()

    def step_flops(self) -> float:
        """FLOPs of one token per row."""
        return 6.0 * self.b * self.d * self.n

    def step_bytes(self) -> float:
        """The float32 state, read and written."""
        return 8.0 * self.b * self.d * self.n
