"""Cases of wkv4."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import LONG, KernelCase, exactly, interpretation
from pallas_kernels.wkv4 import api as backends, reference, xla
from pallas_kernels.wkv4.state import Wkv4State


@dataclasses.dataclass(frozen=True, kw_only=True)
class WkvCase(KernelCase):
    """y and the sums of the final state, or all gradients; those of w and u, sums over rows, where there is one row."""

    h: int = 1
    g: int = 1
    d: int = 256
    documents: bool = False

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"b{self.b}", f"d{self.d}", self.dtype, *["documents"] * self.documents]
        return f"wkv4 {self.implementation} {kind} {'_'.join(words)}"

    @property
    def tolerances(self) -> dict[str, float]:
        names = ("dk", "dv", *(("dw", "du") if self.b == 1 else ()), "dnum", "dden")
        return self.bounds(("y", "num", "den"), names)

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[k, v, w, u, num, den, max, dy, dnum, dden]; keys swing by 60 every 50 tokens, decays span e^-5 to e^3."""
        rng = np.random.default_rng(seed)
        k, v, dy = (rng.standard_normal((self.b, self.t, self.d)) for _ in range(3))
        k = 2 * k + 30.0 * (np.arange(self.t) // 50 % 2)[:, None]
        single = [np.exp(rng.uniform(-5, 3, self.d)), rng.standard_normal(self.d)]
        single += [*rng.standard_normal((5, self.b, self.d))]
        single[3] = 0.5 + np.abs(single[3])
        w, u, num, den, largest, dnum, dden = (np.asarray(np.asarray(x, np.float32), np.float64) for x in single)
        k, v, dy = (self.rounded(x) for x in (k, v, dy))
        return [k, v, w, u, num, den, largest, dy, dnum, dden]

    def _ids(self) -> jax.Array | None:
        """Documents are of 37 tokens."""
        return jnp.arange(self.t, dtype=jnp.int32)[None] // 37 if self.documents else None

    def _checked_gradients(self, found: list) -> list:
        return found if self.b == 1 else [*found[:2], *found[4:]]

    def program(self, arrays, variant: Variant):
        dtypes = (*[self.dtype] * 2, *["float32"] * 5, self.dtype, *["float32"] * 2)
        arrays = [jnp.asarray(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
        backend, how = backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        options = backends.Options(return_state=True, save_states=True)
        keep = xla.keep_of(self._ids())
        if keep is not None:
            keep = jnp.broadcast_to(keep, (self.b, self.t))

        def run(k, v, w, u, num, den, largest, dy, dnum, dden):
            operands = (k, v, w, u, keep, Wkv4State(num, den, largest))
            y, last, saved = backend.forward(*operands, options=options, **how)
            if not self.backward:
                return [y, last.num, last.den]
            dstate = Wkv4State(dnum, dden, jnp.zeros_like(dnum))
            *found, start = backend.backward(*operands, last.max, saved, dy, dstate, options=options, **how)
            return self._checked_gradients([*found, start.num, start.den])

        return run, arrays

    def last(self, x: np.ndarray) -> np.ndarray:
        return x[-1:] if self.t > LONG and len(x) == self.b else x

    def truth(self, arrays):
        def run(k, v, w, u, num, den, largest, dy, dnum, dden):
            def form(k, v, w, u, num, den):
                state = Wkv4State(num, den, largest)
                if self.t > LONG:
                    y, last = reference.in_blocks(k, v, w, u, initial_state=state)
                else:
                    y, last = reference.recurrence(k, v, w, u, initial_state=state, segment_ids=self._ids())
                return y, last.num, last.den

            outputs, pull_back = jax.vjp(form, k, v, w, u, num, den)
            return self._checked_gradients([*pull_back((dy, dnum, dden))]) if self.backward else outputs

        return exactly(run, [x if x.shape == (self.d,) else self.last(x) for x in arrays])
