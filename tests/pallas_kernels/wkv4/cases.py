"""Random calls of wkv4."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.op import Options
from pallas_kernels.wkv4 import Wkv4State, api, reference, wkv4, xla
from tests.pallas_kernels.calls import RandomCall, described, rounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call(RandomCall):
    """k, v: (b, t, d); w, u: (d,), and num and den of an initial state. Channels decay by e^-5 to e^3."""

    t: int
    d: int = 6
    state: bool = True
    size: float = 1.0
    """Standard deviation of the keys."""
    swing: float = 0.0
    """Added to and subtracted from the keys of three tokens in turn."""
    borders = (16, 64)

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        k, v = rng.normal(size=(2, self.b, self.t, self.d))
        k = self.size * k + self.swing * (-1) ** (np.arange(self.t) // 3)[:, None]
        w, u = np.exp(rng.uniform(-5, 3, self.d)), rng.normal(size=self.d)
        sums = [rng.normal(size=(self.b, self.d)), 0.5 + rng.random((self.b, self.d))]
        arrays = [k, v, w, u] + sums * self.state
        return [rounded(z, dtype) for z, dtype in zip(arrays, self.dtypes, strict=False)]

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.dtype, self.dtype, *["float32"] * 4

    def largest(self) -> np.ndarray:
        """`max` of the initial state."""
        return rounded(self.size * np.random.default_rng(self.seed + 2).normal(size=(self.b, self.d)), "float32")

    def cotangents(self) -> list[np.ndarray]:
        """Cotangents of y, and of num and den of the last state."""
        rng = np.random.default_rng(self.seed + 1)
        dy = rounded(rng.normal(size=(self.b, self.t, self.d)), self.dtype)
        return [dy, *(rounded(x, "float32") for x in rng.normal(size=(2, self.b, self.d)))]

    def apply(self, function, k, v, w, u, state, **options):
        options |= {"segment_ids": self.segment_ids, "initial_state": state}
        return function(k, v, w, u, **options)


def evaluate(function, call: Call, dtypes):
    """(y, num, den), `max`, and the gradients of every array, of function(k, v, w, u, state or None) -> y, state."""

    @jax.jit
    def run(arrays, largest, cotangents):
        def outputs(k, v, w, u, *sums):
            y, last = call.apply(function, k, v, w, u, Wkv4State(*sums, largest) if sums else None)
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
        return evaluate(reference.recurrence, call, ["float64"] * 6)


def measured(call: Call, function=wkv4, **options):
    """`evaluate` of an op in the dtypes of the call."""
    form = lambda *arrays, **given: function(*arrays, return_state=True, **given, **options)  # noqa: E731
    return evaluate(form, call, [jnp.dtype(x) for x in call.dtypes])


def operands_of(call: Call):
    """k, v, w, u, keep and the initial state of `api.py`; dy, and the cotangent of the last state."""
    k, v, w, u, *sums = (jnp.asarray(x, dtype) for x, dtype in zip(call.arrays(), call.dtypes, strict=False))
    state = Wkv4State(*sums, jnp.asarray(call.largest(), jnp.float32)) if sums else None
    dy, dnum, dden = (jnp.asarray(x, dtype) for x, dtype in zip(call.cotangents(), call.dtypes[1:4], strict=True))
    dstate = Wkv4State(dnum, dden, jnp.ones_like(dnum))  # of `max`, which has no gradient: ignored
    return (k, v, w, u, xla.keep_of(call.segment_ids), state), (dy, dstate)


def interpreted(call: Call, implementation: str, interpret):
    """As `measured`, of an interpreted kernel."""
    kernels, options = api.BACKENDS[implementation], Options(return_state=True, save_states=True)

    def run(operands, dy, dstate):
        y, last, saved = kernels.forward(*operands, options, interpret=interpret)
        assert described(saved) == described(kernels.saved_like(*operands))
        *gradients, dstart = kernels.backward(*operands, last.max, saved, dy, dstate, options, interpret=interpret)
        return (y, last.num, last.den), last.max, (*gradients, *(() if dstart is None else dstart[:2]))

    operands, cotangents = operands_of(call)
    assert kernels.objection(api.problem_of(operands[0])) is None
    return (jax.jit(run) if implementation == "mosaic_tpu" else run)(operands, *cotangents)
