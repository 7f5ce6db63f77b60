"""Description of a call of wkv4, in backends, tests and benchmarks."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """A call of wkv4: what an objection may depend on, and what a floor follows from."""

    b: int
    t: int
    d: int
    """Channels."""
    dtype: DTypeLike = jnp.bfloat16
    """Dtype of k, v and y."""

    @property
    def dtype_name(self) -> str:
        return jnp.dtype(self.dtype).name

    def sizes(self) -> dict[str, int | str]:
        """By dimension, for tables."""
        return {"b": self.b, "t": self.t, "d": self.d}

    def inputs(self, seed: int = 0) -> tuple[jax.Array, jax.Array]:
        """Normal k and v."""
        k, v = (
            jax.random.normal(key, (self.b, self.t, self.d), jnp.float32).astype(self.dtype)
            for key in jax.random.split(jax.random.key(seed))
        )
        return k, v

    def parameters(self) -> tuple[jax.Array, jax.Array]:
        """w (d,), from e^-5 to e^3 as RWKV-4 initialises its first layer, and u (d,)."""
        place = jnp.arange(self.d, dtype=jnp.float32) / max(self.d - 1, 1)
        return jnp.exp(-5 + 8 * place**0.7), jnp.log(0.3) + 0.5 * ((jnp.arange(self.d) + 1) % 3 - 1).astype(jnp.float32)

    def forward_bytes(self) -> float:
        """k and v in, y out, once."""
        return 3 * self._array()

    def backward_bytes(self) -> float:
        """k, v and dy in, dk and dv out, once."""
        return 5 * self._array()

    def _array(self) -> float:
        return float(self.b * self.t * self.d) * jnp.dtype(self.dtype).itemsize

    def forward_flops(self) -> float:
        """Three multiply-adds that write the sums and three that read them; no matmul."""
        return 12.0 * self.b * self.t * self.d

    def backward_flops(self) -> float:
        """The sums again, and as much for each of the gradients of keys and values."""
        return 3 * self.forward_flops()

    def step_flops(self) -> float:
        """As those of a token."""
        return 12.0 * self.b * self.d

    def step_bytes(self) -> float:
        """The float32 state, read and written."""
        return 24.0 * self.b * self.d
