"""Random calls of the recurrence over chunks, and their float64 truth with gradients: `reference.recurrence`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.delta_chunks import reference


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Shapes and kinds of arrays."""

    n: int
    b: int = 2
    h: int = 2
    k: int = 6
    v: int = 5
    chunk: int = 8
    state: bool = True
    dtype: str = "float32"
    seed: int = 0

    def arrays(self) -> list[np.ndarray]:
        """[x, read, write, mix, keep(, state)] in float64, of numbers that their dtypes hold. mix is not triangular,
        some rows of a state are kept whole and some not at all; states do not grow."""
        rng = np.random.default_rng(self.seed)
        tokens, chunks = (self.b, self.n * self.chunk, self.h), (self.b, self.n, self.h)
        x = rng.normal(size=(*tokens, self.v))
        read, write = rng.normal(size=(2, *tokens, self.k)) * (self.k * self.chunk) ** -0.25
        mix = rng.normal(size=(*chunks, self.chunk, self.chunk)) * 0.5 * self.chunk**-0.5
        keep = np.clip(rng.uniform(-0.2, 1.2, size=(*chunks, self.k)), 0, 1)
        arrays = [x, read, write, mix, keep] + [rng.normal(size=(self.b, self.h, self.k, self.v))] * self.state
        return [_rounded(z, dtype) for z, dtype in zip(arrays, self.dtypes, strict=False)]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those of x, read, write, mix, keep and the state."""
        return *[self.dtype] * 4, "float32", "float32"

    def cotangents(self) -> list[np.ndarray]:
        """Of y and the last state."""
        rng = np.random.default_rng(self.seed + 1)
        dy = rng.normal(size=(self.b, self.n * self.chunk, self.h, self.v))
        dstate = rng.normal(size=(self.b, self.h, self.k, self.v))
        return [_rounded(dy, self.dtype), _rounded(dstate, "float32")]


def _rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(np.asarray(x, jnp.dtype(dtype)), np.float64)


def arrays_of(call: Call):
    """Arrays and cotangents in the dtypes of the call."""
    arrays = [np.asarray(x, jnp.dtype(dtype)) for x, dtype in zip(call.arrays(), call.dtypes, strict=False)]
    dtypes = (call.dtype, "float32")
    return arrays, [np.asarray(x, jnp.dtype(dtype)) for x, dtype in zip(call.cotangents(), dtypes, strict=True)]


def evaluate(function, arrays, cotangents, *, n=6):
    """(outputs, gradients of every array) of function(n arrays, the last a state or None) -> y(, last state), whichever
    of the cotangents are there."""

    @jax.jit
    def run(arrays, cotangents):
        out, pull_back = jax.vjp(lambda *arrays: function(*arrays, *[None] * (n - len(arrays))), *arrays)
        return out, pull_back(tuple(cotangents) if isinstance(out, tuple) else cotangents[0])

    return jax.tree.map(np.asarray, run(tuple(arrays), tuple(cotangents)))


def truth(call: Call, *, last: bool = True):
    """Outputs and gradients in float64; last: the last state too, and its cotangent."""

    def run(*arrays):
        y, state = reference.recurrence(*arrays[:5], initial_state=arrays[5])
        return (y, state) if last else y

    with jax.enable_x64(True):
        arrays, cotangents = (
            [jnp.asarray(x, jnp.float64) for x in some] for some in (call.arrays(), call.cotangents())
        )
        return evaluate(run, arrays, cotangents)
