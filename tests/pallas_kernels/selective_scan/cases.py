"""Random calls of the selective scan."""

import dataclasses

import jax
import numpy as np

from pallas_kernels.op import Options
from pallas_kernels.selective_scan import api, reference, xla
from tests.pallas_kernels.calls import RandomCall, described, rounded, typed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call(RandomCall):
    """x, delta: (b, t, d); a: (d, n); b, c: (b, t, n), and an initial state."""

    t: int
    d: int = 6
    n: int = 8
    state: bool = True
    decay: float = 1.0
    """The largest -delta a; every third token has a small delta, some have 0, and some channels have no decay."""
    delta_dtype: str = "float32"
    n_operands = 6

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        x = rng.normal(size=(self.b, self.t, self.d))
        b, c = rng.normal(size=(2, self.b, self.t, self.n))
        size = np.where(np.arange(self.t) % 3 == 0, 1e-2, 1.0)[:, None]
        delta = rng.random((self.b, self.t, self.d)) * size
        delta[:, 5::7] = 0
        a = -self.decay * rng.random((self.d, self.n))
        a[::7] = 0
        arrays = [x, delta, a, b, c] + [rng.normal(size=(self.b, self.d, self.n))] * self.state
        return [rounded(z, dtype) for z, dtype in zip(arrays, self.dtypes, strict=False)]

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.dtype, self.delta_dtype, "float32", self.dtype, self.dtype, "float32"

    def cotangents(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed + 1)
        dy = rng.normal(size=(self.b, self.t, self.d))
        return [rounded(dy, self.dtype), rounded(rng.normal(size=(self.b, self.d, self.n)), "float32")]

    def reference(self, *operands):
        return reference.recurrence(*operands[:5], segment_ids=self.segment_ids, initial_state=operands[5])

    def apply(self, function, *operands, **options):
        options |= {"initial_state": operands[5], "segment_ids": self.segment_ids, "return_state": True}
        return function(*operands[:5], **options)


def interpreted(call: Call, implementation: str, interpret):
    """(y, last state), and the gradients of all arrays, of an interpreted kernel."""
    arrays, cotangents = typed(call)
    kernels, options = api.BACKENDS[implementation], Options(return_state=True, save_states=True)
    assert implementation == "mosaic_tpu" or kernels.objection(api.problem_of(*arrays[:3])) is None

    def run(arrays, dy, dstate):
        operands = *arrays[:5], xla.keep_of(call.segment_ids), arrays[5] if call.state else None
        y, last, saved = kernels.forward(*operands, options, interpret=interpret)
        assert described(saved) == described(kernels.saved_like(*operands))
        gradients = kernels.backward(*operands, saved, dy, dstate, options, interpret=interpret)
        return (y, last), gradients[: len(arrays)]

    return (jax.jit(run) if implementation == "mosaic_tpu" else run)(arrays, *cotangents)
