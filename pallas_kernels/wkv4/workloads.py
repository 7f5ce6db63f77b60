"""Workloads of wkv4: shapes and calls of benchmarks and compile checks, and verified cases.

Arrays are k and v; w and u are constants, because their gradients, sums over the batch, cannot be checked on some rows.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.verify.kernel_case import Inputs, KernelCase, both_passes, document_keep
from pallas_kernels.wkv4 import mosaic_tpu_layout, reference
from pallas_kernels.wkv4.api import OP, wkv4
from pallas_kernels.wkv4.problem import Problem
from pallas_kernels.wkv4.state import Wkv4State, empty_state
from pallas_kernels.workload import OpWorkloads, in_blocks

PRESETS = {
    "rwkv4_169m": Problem(b=8, t=1024, d=768),
    "rwkv4_3b": Problem(b=8, t=4096, d=2560),
    "one_prompt": Problem(b=1, t=4096, d=2560),
}
"""Widths and lengths of published models (Peng et al. 2023, Table 2), a training step's rows and a single prompt."""
SHAPES = {
    "headline": {"b4_t8192_d1024": Problem(b=4, t=8192, d=1024)},
    "presets": PRESETS,
    "step": PRESETS,
    "cpu": {"text_t2048": Problem(b=4, t=2048, d=256, dtype=jnp.float32)},
}


def _call(problem: Problem, implementation: str | None) -> Callable:
    def run(k, v, **options):
        return wkv4(k, v, *problem.parameters(), implementation=implementation, **options)

    return run


def _truth(problem: Problem) -> Callable:
    def run(k, v, state):
        if state is None:
            state = jax.tree.map(lambda x: x.astype(k.dtype), empty_state(len(k), problem.d))
        w, u = (x.astype(k.dtype) for x in problem.parameters())
        return _in_blocks(k, v, w, u, state)

    return run


def _in_blocks(k, v, w, u, state):
    return in_blocks(lambda k, v, state: reference.recurrence(k, v, w, u, initial_state=state), state, (k, v))


def _state(problem: Problem, seed: int) -> Wkv4State:
    num, scale = jax.random.normal(jax.random.key(seed), (2, problem.b, problem.d), jnp.float32)
    return Wkv4State(num, jnp.ones_like(num), scale)


def _kept(problem: Problem) -> float:
    """Bytes of the float32 sums that mosaic_tpu saves."""
    return 0.0 if mosaic_tpu_layout.objection(problem) else 4.0 * math.prod(mosaic_tpu_layout.border_shape(problem))


WORKLOADS = OpWorkloads(op="wkv4", call=_call, truth=_truth, state=_state, kept=_kept)
GROUPS = WORKLOADS.groups(SHAPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WkvCase(KernelCase):
    """y and the sums of the final state, or all gradients, those of w and u (sums over rows) only for one row."""

    OP: ClassVar = OP
    PROBLEM: ClassVar = Problem
    NAMED: ClassVar = ("t", "b", "d", "dtype", "documents")

    h: int = 1
    g: int = 1
    d: int = 256
    documents: bool = False

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y", "num", "den"), ("dk", "dv", *(("dw", "du") if self.b == 1 else ("", "")), "dnum", "dden")

    def inputs(self, seed: int) -> Inputs:
        """Keys swing by 60 every 50 tokens, decays span e^-5 to e^3."""
        rng, token = np.random.default_rng(seed), jnp.dtype(self.dtype)
        k, v, dy = (rng.standard_normal((self.b, self.t, self.d)) for _ in range(3))
        k = 2 * k + 30.0 * (np.arange(self.t) // 50 % 2)[:, None]
        w, u = np.exp(rng.uniform(-5, 3, self.d)).astype(np.float32), self.floats(rng, self.d)
        num, den, largest, dnum, dden = self.floats(rng, 5, self.b, self.d)
        state, dstate = Wkv4State(num, 0.5 + np.abs(den), largest), Wkv4State(dnum, dden, np.zeros_like(dnum))
        keep = document_keep(self.b, self.t) if self.documents else None
        return Inputs((k.astype(token), v.astype(token), w, u, keep, state), (dy.astype(token), dstate))

    def reference(self, k, v, w, u, keep, state):
        if keep is None:
            return _in_blocks(k, v, w, u, state)
        return reference.recurrence(k, v, w, u, initial_state=state, segment_ids=jnp.cumsum(keep == 0, axis=1))


VERIFIED: list[dict[str, Any]] = [
    {"t": 16, "d": 512},
    {"t": 65, "b": 2, "d": 512},
    {"t": 72, "dtype": "float32", "d": 512},
    {"t": 200, "documents": True, "d": 512},
    {"t": 8184, "d": 768, "b": 2},
    {"t": 8192, "b": 4, "d": 1024},
]
CASES = {
    "gpu": both_passes(WkvCase, "mosaic_gpu", *VERIFIED),
    "tpu": both_passes(WkvCase, "mosaic_tpu", *VERIFIED),
    "cpu": [
        *both_passes(WkvCase, "mosaic_gpu", {"t": 40}),
        *both_passes(WkvCase, "mosaic_tpu", {"t": 40, "dtype": "float32", "d": 512}),
    ],
}
