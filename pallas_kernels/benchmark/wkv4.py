"""wkv4 against its truth, its definition token by token. Public kernels run only with a build of their own."""

from typing import Any

import jax

from pallas_kernels.benchmark.candidates import Candidate, implementation
from pallas_kernels.wkv4 import reference
from pallas_kernels.wkv4.api import IMPLEMENTATIONS
from pallas_kernels.wkv4.problem import Problem
from pallas_kernels.workload import Workload


def candidates(platform: str) -> list[Candidate]:
    del platform
    return [implementation(name) for name in ("auto", *IMPLEMENTATIONS)]


def default_names(platform: str) -> tuple[str, ...]:
    return ("auto", "xla", *{"cpu": ("reference",), "gpu": ("mosaic_gpu",), "tpu": ("mosaic_tpu",)}[platform])


def truth(workload: Workload, inputs: Any) -> Any:
    """The reference; a step is a sequence of one token."""
    parameters = Problem(b=1, t=1, d=int(workload.sizes["d"])).parameters()

    def forward(k, v):
        return reference.in_blocks(k, v, *(x.astype(k.dtype) for x in parameters))[0]

    if workload.kind == "forward":
        return forward(*inputs)
    if workload.kind == "step":
        state, k, v = inputs
        y, state = reference.recurrence(k[:, None], v[:, None], *parameters, initial_state=state)
        return y[:, 0], state
    *arrays, dy = inputs
    y, pull_back = jax.vjp(forward, *arrays)
    return y, pull_back(dy)
