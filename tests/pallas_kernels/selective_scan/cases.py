"""Random calls of the selective scan, and their float64 truth with gradients: `reference.recurrence`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.selective_scan import reference, selective_scan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Shapes and kinds of arrays."""

    t: int
    b: int = 2
    d: int = 6
    n: int = 8
    state: bool = True
    documents: bool = False
    decay: float = 1.0
    """The largest -delta a; every third token has a small delta, some have 0, and some channels have no decay."""
    dtype: str = "float32"
    delta_dtype: str = "float32"
    seed: int = 0

    def arrays(self) -> list[np.ndarray]:
        """[x, delta, a, b, c(, state)] in float64, of numbers that their dtypes hold."""
        rng = np.random.default_rng(self.seed)
        x = rng.normal(size=(self.b, self.t, self.d))
        b, c = rng.normal(size=(2, self.b, self.t, self.n))
        size = np.where(np.arange(self.t) % 3 == 0, 1e-2, 1.0)[:, None]
        delta = rng.random((self.b, self.t, self.d)) * size
        delta[:, 5::7] = 0
        a = -self.decay * rng.random((self.d, self.n))
        a[::7] = 0
        arrays = [x, delta, a, b, c] + [rng.normal(size=(self.b, self.d, self.n))] * self.state
        return [_rounded(z, dtype) for z, dtype in zip(arrays, self.dtypes, strict=False)]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those of x, delta, a, b, c and the state."""
        return self.dtype, self.delta_dtype, "float32", self.dtype, self.dtype, "float32"

    def cotangents(self) -> list[np.ndarray]:
        """Of y and the last state."""
        rng = np.random.default_rng(self.seed + 1)
        dy = rng.normal(size=(self.b, self.t, self.d))
        return [_rounded(dy, self.dtype), _rounded(rng.normal(size=(self.b, self.d, self.n)), "float32")]

    @property
    def segment_ids(self):
        """Documents that begin within chunks and at their borders, of one token too."""
        if not self.documents:
            return None
        borders = np.array([self.t // 5, self.t // 5 + 1, 64, 128, self.t * 4 // 5])
        ids = (np.arange(self.t)[:, None] >= borders).sum(1)
        return jnp.asarray(np.stack([ids + 3 * row for row in range(self.b)]).astype(np.int32))


def _rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(np.asarray(x, jnp.dtype(dtype)), np.float64)


def evaluate(function, arrays, cotangents):
    """(outputs, gradients of every array) of function(x, delta, a, b, c, state or None) -> y, state."""

    @jax.jit
    def run(arrays, cotangents):
        out, pull_back = jax.vjp(lambda x, delta, a, b, c, state=None: function(x, delta, a, b, c, state), *arrays)
        return out, pull_back(tuple(cotangents))

    return jax.tree.map(np.asarray, run(tuple(arrays), cotangents))


def truth(call: Call):
    ids = call.segment_ids
    with jax.enable_x64(True):
        arrays, cotangents = (
            [jnp.asarray(x, jnp.float64) for x in some] for some in (call.arrays(), call.cotangents())
        )
        return evaluate(
            lambda *arrays: reference.recurrence(*arrays[:5], segment_ids=ids, initial_state=arrays[5]),
            arrays,
            cotangents,
        )


def measured(call: Call, **options):
    """As `truth`, by `selective_scan`."""
    ids = call.segment_ids

    def scan(*arrays):
        return selective_scan(*arrays[:5], segment_ids=ids, initial_state=arrays[5], return_state=True, **options)

    return evaluate(scan, *arrays_of(call))


def arrays_of(call: Call):
    """Arrays and cotangents in the dtypes of the call."""
    arrays = [np.asarray(x, jnp.dtype(dtype)) for x, dtype in zip(call.arrays(), call.dtypes, strict=False)]
    dtypes = (call.dtype, "float32")
    return arrays, [np.asarray(x, jnp.dtype(dtype)) for x, dtype in zip(call.cotangents(), dtypes, strict=True)]
