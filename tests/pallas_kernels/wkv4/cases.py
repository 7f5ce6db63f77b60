"""Random calls of wkv4, and their float64 truth with gradients: `reference.recurrence`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.wkv4 import Wkv4State, reference, wkv4, xla


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Shapes and kinds of arrays."""

    t: int
    b: int = 2
    d: int = 6
    state: bool = True
    documents: bool = False
    size: float = 1.0
    """Standard deviation of the keys."""
    swing: float = 0.0
    """Added to and subtracted from the keys of three tokens in turn."""
    dtype: str = "float32"
    seed: int = 0

    def arrays(self) -> list[np.ndarray]:
        """[k, v, w, u(, num, den)] in float64, of numbers that their dtypes hold. Channels decay by e^-5 to e^3."""
        rng = np.random.default_rng(self.seed)
        k, v = rng.normal(size=(2, self.b, self.t, self.d))
        k = self.size * k + self.swing * (-1) ** (np.arange(self.t) // 3)[:, None]
        w, u = np.exp(rng.uniform(-5, 3, self.d)), rng.normal(size=self.d)
        sums = [rng.normal(size=(self.b, self.d)), 0.5 + rng.random((self.b, self.d))]
        arrays = [k, v, w, u] + sums * self.state
        return [_rounded(z, dtype) for z, dtype in zip(arrays, self.dtypes, strict=False)]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those of the arrays."""
        return self.dtype, self.dtype, *["float32"] * 4

    def largest(self) -> np.ndarray:
        """`max` of the initial state."""
        return _rounded(self.size * np.random.default_rng(self.seed + 2).normal(size=(self.b, self.d)), "float32")

    def cotangents(self) -> list[np.ndarray]:
        """Of y, and of num and den of the last state."""
        rng = np.random.default_rng(self.seed + 1)
        dy = _rounded(rng.normal(size=(self.b, self.t, self.d)), self.dtype)
        return [dy, *(_rounded(x, "float32") for x in rng.normal(size=(2, self.b, self.d)))]

    @property
    def segment_ids(self):
        """Documents that begin within chunks and at their borders, of one token too."""
        if not self.documents:
            return None
        borders = np.array([self.t // 5, self.t // 5 + 1, 16, 64, self.t * 4 // 5])
        ids = (np.arange(self.t)[:, None] >= borders).sum(1)
        return jnp.asarray(np.stack([ids + 3 * row for row in range(self.b)]).astype(np.int32))


def _rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(np.asarray(x, jnp.dtype(dtype)), np.float64)


def evaluate(function, call: Call, dtypes):
    """(y, num, den), `max`, and the gradients of every array, of function(k, v, w, u, state or None) -> y, state."""

    @jax.jit
    def run(arrays, largest, cotangents):
        def outputs(k, v, w, u, *sums):
            y, last = function(k, v, w, u, Wkv4State(*sums, largest) if sums else None)
            return (y, last.num, last.den), last.max

        out, pull_back, scale = jax.vjp(outputs, *arrays, has_aux=True)
        return out, scale, pull_back(tuple(cotangents))

    arrays = [np.asarray(x, dtype) for x, dtype in zip(call.arrays(), dtypes, strict=False)]
    cotangent_dtypes = (dtypes[0], dtypes[2], dtypes[2])
    cotangents = [np.asarray(x, dtype) for x, dtype in zip(call.cotangents(), cotangent_dtypes, strict=True)]
    return jax.tree.map(np.asarray, run(arrays, np.asarray(call.largest(), dtypes[2]), cotangents))


def truth(call: Call):
    """`evaluate` of the reference in float64."""
    with jax.enable_x64(True):
        form = lambda *x: reference.recurrence(*x[:4], segment_ids=call.segment_ids, initial_state=x[4])  # noqa: E731
        return evaluate(form, call, ["float64"] * 6)


def measured(call: Call, **options):
    """`evaluate` of `wkv4` in the dtypes of the call."""
    form = lambda *x: wkv4(*x[:4], segment_ids=call.segment_ids, initial_state=x[4], return_state=True, **options)  # noqa: E731
    return evaluate(form, call, [jnp.dtype(x) for x in call.dtypes])


def operands_of(call: Call):
    """k, v, w, u, keep and the initial state of `api.py`; dy, and the cotangent of the last state."""
    k, v, w, u, *sums = (jnp.asarray(x, dtype) for x, dtype in zip(call.arrays(), call.dtypes, strict=False))
    state = Wkv4State(*sums, jnp.asarray(call.largest(), jnp.float32)) if sums else None
    dy, dnum, dden = (jnp.asarray(x, dtype) for x, dtype in zip(call.cotangents(), call.dtypes[1:4], strict=True))
    dstate = Wkv4State(dnum, dden, jnp.ones_like(dnum))  # of `max`, which has no gradient: ignored
    return (k, v, w, u, xla.keep_of(call.segment_ids), state), (dy, dstate)
