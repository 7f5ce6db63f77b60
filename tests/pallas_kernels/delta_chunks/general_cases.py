"""Random calls of the general delta rule, and their float64 truth with gradients: `reference.general_recurrence`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.delta_chunks import reference
from tests.pallas_kernels.delta_chunks import cases

RESET = -8192.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Shapes and kinds of arrays."""

    t: int
    b: int = 2
    h: int = 2
    k: int = 6
    v: int = 5
    state: bool = True
    documents: bool = False
    dtype: str = "float32"
    seed: int = 0

    def arrays(self) -> list[np.ndarray]:
        """[q, k, v, u, z, log_decay(, state)] in float64, of numbers that their dtypes hold.

        u and z have no direction in common with the keys; the decays of channels reach from none to e^-3. Documents
        have 37 tokens.
        """
        rng = np.random.default_rng(self.seed)
        tokens = (self.b, self.t, self.h)
        q, k, u, other = rng.normal(size=(4, *tokens, self.k))
        v = rng.normal(size=(*tokens, self.v))
        u /= np.linalg.norm(u, axis=-1, keepdims=True)
        z = -rng.uniform(size=u.shape) * (u + 0.3 * other / np.linalg.norm(other, axis=-1, keepdims=True))
        log_decay = -3 * rng.uniform(size=u.shape) ** 4
        if self.documents:
            begins = np.arange(self.t) % 37 == 0
            u = np.where(begins[:, None, None], 0, u)
            log_decay = np.where(begins[:, None, None], RESET, log_decay)
        state = rng.normal(size=(self.b, self.h, self.k, self.v))
        arrays = [q, k * self.k**-0.5, v, u, z, log_decay] + [state] * self.state
        return [_rounded(x, dtype) for x, dtype in zip(arrays, self.dtypes, strict=False)]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those of q, k, v, u, z, log_decay and the state."""
        return *[self.dtype] * 5, "float32", "float32"

    def cotangents(self) -> list[np.ndarray]:
        """Of y and the last state."""
        rng = np.random.default_rng(self.seed + 1)
        dy = rng.normal(size=(self.b, self.t, self.h, self.v))
        dstate = rng.normal(size=(self.b, self.h, self.k, self.v))
        return [_rounded(dy, self.dtype), _rounded(dstate, "float32")]


def _rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(np.asarray(x, jnp.dtype(dtype)), np.float64)


def arrays_of(call: Call):
    """Arrays and cotangents in the dtypes of the call."""
    arrays = [np.asarray(x, jnp.dtype(dtype)) for x, dtype in zip(call.arrays(), call.dtypes, strict=False)]
    dtypes = (call.dtype, "float32")
    return arrays, [np.asarray(x, jnp.dtype(dtype)) for x, dtype in zip(call.cotangents(), dtypes, strict=True)]


def evaluate(function, arrays, cotangents):
    """`cases.evaluate` of a function of q, k, v, u, z, log_decay, state or None."""
    return cases.evaluate(function, arrays, cotangents, n=7)


def truth(call: Call, *, last: bool = True):
    """Outputs and gradients in float64; last: the last state too, and its cotangent."""

    def run(*arrays):
        y, state = reference.general_recurrence(*arrays[:6], initial_state=arrays[6])
        return (y, state) if last else y

    with jax.enable_x64(True):
        arrays, cotangents = (
            [jnp.asarray(x, jnp.float64) for x in some] for some in (call.arrays(), call.cotangents())
        )
        return evaluate(run, arrays, cotangents)
