"""Description of a call of the selective scan, in backends, tests and benchmarks."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """A call of the selective scan: what an objection may depend on, and what a floor follows from."""

    b: int
    t: int
    d: int
    """Channels."""
    n: int
    """Numbers of state per channel."""
    dtype: DTypeLike = jnp.bfloat16
    """Dtype of x, b, c and y."""
    delta_dtype: DTypeLike = jnp.float32

    @property
    def dtype_name(self) -> str:
        return jnp.dtype(self.dtype).name

    @property
    def delta_dtype_name(self) -> str:
        return jnp.dtype(self.delta_dtype).name

    def sizes(self) -> dict[str, int | str]:
        """By dimension, for tables."""
        return {"b": self.b, "t": self.t, "d": self.d, "n": self.n}

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Normal x, b and c, and delta log-uniform in [0.001, 0.1], as Mamba initialises it: x, delta, b, c."""
        keys = jax.random.split(jax.random.key(seed), 4)
        tokens, maps = (self.b, self.t, self.d), (self.b, self.t, self.n)
        x, b, c = (
            jax.random.normal(key, shape, jnp.float32).astype(self.dtype)
            for key, shape in zip(keys[:3], (tokens, maps, maps), strict=True)
        )
        log_delta = jax.random.uniform(keys[3], tokens, jnp.float32, math.log(0.001), math.log(0.1))
        return x, jnp.exp(log_delta).astype(self.delta_dtype), b, c

    def rates(self) -> jax.Array:
        """a (d, n), -1 to -n in every channel, as Mamba initialises it."""
        return -jnp.tile(jnp.arange(1, self.n + 1, dtype=jnp.float32)[None], (self.d, 1))

    def forward_bytes(self) -> float:
        """x, delta, b, c and a in, y out, once."""
        item, delta = self._item_sizes()
        tokens = self.d * (2 * item + delta) + 2 * self.n * item
        return float(self.b * self.t) * tokens + 4 * self.d * self.n

    def backward_bytes(self) -> float:
        """x, delta, dy, b, c and a in, dx, ddelta, db, dc and da out, once."""
        item, delta = self._item_sizes()
        tokens = self.d * (3 * item + 2 * delta) + 4 * self.n * item
        return float(self.b * self.t) * tokens + 8 * self.d * self.n

    def _item_sizes(self) -> tuple[int, int]:
        return jnp.dtype(self.dtype).itemsize, jnp.dtype(self.delta_dtype).itemsize

    def exponentials(self) -> float:
        """Decays exp(delta a) of a pass: what a kernel that moves bytes once may wait for instead."""
        return float(self.b * self.t) * self.d * self.n

    def forward_flops(self) -> float:
        """delta a, (delta x) b, two of the state, two of the output, per number of state; no matmul."""
        return 6 * self.exponentials()

    def backward_flops(self) -> float:
        """The states again without outputs, and ten of their gradients."""
        return 14 * self.exponentials()

    def step_flops(self) -> float:
        """As those of a token."""
        return 6.0 * self.b * self.d * self.n

    def step_bytes(self) -> float:
        """The float32 state, read and written."""
        return 8.0 * self.b * self.d * self.n
