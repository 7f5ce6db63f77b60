"""Cases of gated linear attention, of the selective scan and of the chunks of delta rules."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.delta_chunks import api as delta_backends, reference as delta_reference
from pallas_kernels.delta_chunks.problem import Problem as DeltaProblem
from pallas_kernels.gated_linear_attention import (
    api as gated_backends,
    reference as gated_reference,
    xla as gated_xla,
)
from pallas_kernels.selective_scan import api as scan_backends, reference as scan_reference, xla as scan_xla
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import LONG, KernelCase, exactly, interpretation


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedCase(KernelCase):
    """y and the final state, or all gradients; q and k have g heads, v has h."""

    k: int = 64
    v: int = 64
    documents: bool = False
    channel: bool = False

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"h{self.h}", f"g{self.g}", f"k{self.k}", f"v{self.v}", self.dtype]
        words += ["channel"] * self.channel + ["documents"] * self.documents
        return f"gated_linear_attention {self.implementation} {kind} {'_'.join(words)}"

    @property
    def tolerances(self) -> dict[str, float]:
        bounds = self.bounds(("y", "s"), ("dq", "dk", "dv", "dlog_decay", "ds"))
        return {name: max(bound, 8e-3) if self.dtype == "bfloat16" else bound for name, bound in bounds.items()}

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[q, k, v, dy, log_decay, state, dstate]; every third token decays little, documents are of 37 tokens."""
        rng = np.random.default_rng(seed)
        widths = ((self.g, self.k), (self.g, self.k), (self.h, self.v), (self.h, self.v))
        tokens = [self.rounded(rng.standard_normal((self.b, self.t, *x))) for x in widths]
        tokens[1] = self.rounded(tokens[1] * self.k**-0.5)
        shape = (self.b, self.t, self.h, *[self.k] * self.channel)
        size = np.where(np.arange(self.t) % 3 == 0, 1e-3, 0.5)
        decay = -rng.random(shape) * size.reshape(-1, *[1] * (len(shape) - 2))
        if self.documents:
            decay[:, 37::37] = gated_xla.RESET
        states = [0.3 * rng.standard_normal((self.b, self.h, self.k, self.v)) for _ in range(2)]
        return tokens + [np.asarray(np.float32(x), np.float64) for x in (decay, *states)]

    def program(self, arrays, variant: Variant):
        q, k, v, dy = (jnp.asarray(x, self.dtype) for x in arrays[:4])
        decay, state, dstate = (jnp.asarray(x, jnp.float32) for x in arrays[4:])
        backend, how = gated_backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        options = gated_backends.Options(return_state=True, save_states=True)

        def run(q, k, v, decay, state, dy, dstate):
            tokens = (q, k, v, decay, state)
            y, last, saved = backend.forward(*tokens, options=options, **how)
            return backend.backward(*tokens, saved, dy, dstate, options=options, **how) if self.backward else [y, last]

        return run, (q, k, v, decay, state, dy, dstate)

    def truth(self, arrays):
        def run(q, k, v, dy, decay, state, dstate):
            form = gated_reference.recurrence
            outputs, pull_back = jax.vjp(lambda *x: form(*x[:4], initial_state=x[4]), q, k, v, decay, state)
            return pull_back((dy, dstate)) if self.backward else outputs

        return exactly(run, [self.last(x) for x in arrays])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanCase(KernelCase):
    """y and the final state, or all gradients; that of a, a sum over rows, where there is one row."""

    h: int = 1
    g: int = 1
    d: int = 256
    n: int = 16
    delta_dtype: str = "float32"
    documents: bool = False

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"b{self.b}", f"d{self.d}", f"n{self.n}", self.dtype, f"delta_{self.delta_dtype}"]
        words += ["documents"] * self.documents
        return f"selective_scan {self.implementation} {kind} {'_'.join(words)}"

    @property
    def gradients(self) -> tuple[str, ...]:
        return tuple(x for x in ("dx", "ddelta", "da", "db", "dc", "dstate") if x != "da" or self.b == 1)

    @property
    def tolerances(self) -> dict[str, float]:
        return self.bounds(("y", "state"), self.gradients)

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[x, delta, a, b, c, state, dy, dstate]; every third token decays little, every 13th not at all."""
        rng = np.random.default_rng(seed)
        x, dy = (self.rounded(rng.standard_normal((self.b, self.t, self.d))) for _ in range(2))
        b, c = (self.rounded(rng.standard_normal((self.b, self.t, self.n))) for _ in range(2))
        size = np.where(np.arange(self.t) % 3 == 0, 1e-3, 0.5) * (np.arange(self.t) % 13 != 12)
        delta = rng.random((self.b, self.t, self.d)) * size[:, None]
        delta = np.asarray(np.asarray(delta, jnp.dtype(self.delta_dtype)), np.float64)
        a = np.asarray(-2 * rng.random((self.d, self.n)), np.float32)
        state, dstate = (np.asarray(rng.standard_normal((self.b, self.d, self.n)), np.float32) for _ in range(2))
        a, state, dstate = (np.asarray(x, np.float64) for x in (a, state, dstate))
        return [x, delta, a, b, c, state, dy, dstate]

    def keep(self) -> jax.Array | None:
        """Documents are of 37 tokens."""
        ids = np.broadcast_to(np.arange(self.t, dtype=np.int32) // 37, (self.b, self.t))
        return scan_xla.keep_of(jnp.asarray(ids) if self.documents else None)

    def program(self, arrays, variant: Variant):
        dtypes = (self.dtype, self.delta_dtype, "float32", self.dtype, self.dtype, "float32", self.dtype, "float32")
        arrays = [jnp.asarray(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
        backend, how = scan_backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        options = scan_backends.Options(return_state=True, save_states=True)

        def run(x, delta, a, b, c, state, dy, dstate, keep):
            operands = (x, delta, a, b, c, keep, state)
            y, last, saved = backend.forward(*operands, options=options, **how)
            if not self.backward:
                return [y, last]
            found = backend.backward(*operands, saved, dy, dstate, options=options, **how)
            return [x for i, x in enumerate(found) if i != 2 or self.b == 1]

        return run, (*arrays, self.keep())

    def last(self, x: np.ndarray) -> np.ndarray:
        return x[-1:] if self.t > LONG and len(x) == self.b else x

    def truth(self, arrays):
        def run(x, delta, a, b, c, state, dy, dstate):
            def form(x, delta, a, b, c, state):
                if self.t > LONG:
                    return scan_reference.in_blocks(x, delta, a, b, c, initial_state=state)
                ids = jnp.arange(self.t, dtype=jnp.int32)[None] // 37 if self.documents else None
                return scan_reference.recurrence(x, delta, a, b, c, initial_state=state, segment_ids=ids)

            outputs, pull_back = jax.vjp(form, x, delta, a, b, c, state)
            if not self.backward:
                return outputs
            return [x for i, x in enumerate(pull_back((dy, dstate))) if i != 2 or self.b == 1]

        return exactly(run, [x if x.shape == (self.d, self.n) else self.last(x) for x in arrays])


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaCase(KernelCase):
    """y and the final state, or all gradients; chunks of 64 tokens."""

    k: int = 64
    v: int = 64

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"b{self.b}", f"h{self.h}", f"k{self.k}", f"v{self.v}", self.dtype]
        return f"delta_chunks {self.implementation} {kind} {'_'.join(words)}"

    @property
    def tolerances(self) -> dict[str, float]:
        return self.bounds(("y", "state"), ("dx", "dread", "dwrite", "dmix", "dkeep", "dstate"))

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[x, read, write, mix, keep, state, dy, dstate]."""
        rng = np.random.default_rng(seed)
        x, dy = (self.rounded(rng.standard_normal((self.b, self.t, self.h, self.v))) for _ in range(2))
        given = DeltaProblem(b=self.b, t=self.t, h=self.h, k=self.k, v=self.v, dtype=self.dtype).inputs(seed)
        others = [np.asarray(z, np.float64) for z in given[1:]]
        states = (rng.standard_normal((self.b, self.h, self.k, self.v)) for _ in range(2))
        state, dstate = (np.asarray(np.asarray(z, np.float32), np.float64) for z in states)
        return [x, *others, state, dy, dstate]

    def program(self, arrays, variant: Variant):
        dtypes = (*[self.dtype] * 4, "float32", "float32", self.dtype, "float32")
        arrays = [jnp.asarray(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
        backend, how = delta_backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        options = delta_backends.Options(return_state=True, save_states=self.backward)

        def run(*arrays):
            *operands, dy, dstate = arrays
            y, last, states = backend.forward(*operands, options=options, **how)
            if not self.backward:
                return [y, last]
            return backend.backward(*operands, y, states, dy, dstate, options=options, **how)

        return run, arrays

    def last(self, x: np.ndarray) -> np.ndarray:
        if self.t <= LONG or len(x) != self.b:
            return x
        return x[-1:, -1:] if x.shape == (self.b, self.h, self.k, self.v) else x[-1:, :, -1:]

    def truth(self, arrays):
        def run(*arrays):
            *operands, dy, dstate = arrays
            form = delta_reference.recurrence
            outputs, pull_back = jax.vjp(lambda *x: form(*x[:5], initial_state=x[5]), *operands)
            return pull_back((dy, dstate)) if self.backward else outputs

        return exactly(run, [self.last(x) for x in arrays])
