"""Cases of the general delta rule, which counts to `delta_chunks`."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.delta_chunks import general_api as backends, reference
from pallas_kernels.delta_chunks.general_xla import CHUNK
from pallas_kernels.delta_chunks.problem import GeneralProblem
from pallas_kernels.gated_linear_attention.xla import RESET
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import KernelCase, exactly, interpretation


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneralCase(KernelCase):
    """y and the final state, or all gradients; keys and values of 64, documents of 37 tokens."""

    documents: bool = False

    eager_interpretation: ClassVar[bool] = True
    """On few cores, independent kernels of one interpreted program wait for each other and do not end."""

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"b{self.b}", f"h{self.h}", self.dtype] + ["documents"] * self.documents
        return f"delta_chunks {self.implementation} {kind} general_{'_'.join(words)}"

    @property
    def problem(self) -> GeneralProblem:
        return GeneralProblem(b=self.b, t=self.t, h=self.h, k=64, v=64, dtype=self.dtype)

    @property
    def tolerances(self) -> dict[str, float]:
        return self.bounds(("y", "state"), ("dq", "dk", "dv", "du", "dz", "dlog_decay", "dstate"))

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[q, k, v, u, z, log_decay, state, dy, dstate]."""
        rng = np.random.default_rng(seed)
        q, k, v, u, z, log_decay = (np.asarray(x, np.float64) for x in self.problem.inputs(seed))
        if self.documents:
            begins = (np.arange(self.t) % 37 == 0)[:, None, None]
            u, log_decay = np.where(begins, 0.0, u), np.where(begins, RESET, log_decay)
        dy = self.rounded(rng.standard_normal(v.shape))
        states = (rng.standard_normal((self.b, self.h, 64, 64)) for _ in range(2))
        state, dstate = (np.asarray(np.asarray(x, np.float32), np.float64) for x in states)
        return [q, k, v, u, z, log_decay, state, dy, dstate]

    def program(self, arrays, variant: Variant):
        dtypes = (*[self.dtype] * 5, "float32", "float32", self.dtype, "float32")
        given = [jnp.asarray(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
        backend, how = backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        options = backends.Options(return_state=True, save_states=self.backward)

        def pad(x):
            return jnp.pad(x, ((0, 0), (0, -self.t % CHUNK), (0, 0), (0, 0)))

        def run(*arrays):
            *operands, dy, dstate = arrays
            operands = (*map(pad, operands[:6]), operands[6])
            y, last, saved = backend.forward(*operands, options=options, **how)
            if not self.backward:
                return [y[:, : self.t], last]
            *tokens, first = backend.backward(*operands, saved, pad(dy), dstate, options=options, **how)
            return [*(x[:, : self.t] for x in tokens), first]

        return run, given

    def truth(self, arrays):
        def run(*arrays):
            *operands, dy, dstate = arrays
            outputs, pull_back = jax.vjp(_general, *operands)
            return pull_back((dy, dstate)) if self.backward else outputs

        return exactly(run, [self.last(x) for x in arrays])


def _general(*arrays):
    return reference.general_in_blocks(*arrays[:6], initial_state=arrays[6])
