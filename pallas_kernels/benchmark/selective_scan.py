"""Selective scan against its truth, its definition token by token. No public peer runs without a build of its own."""

from typing import Any

import jax

from pallas_kernels.benchmark.candidates import Candidate, implementation
from pallas_kernels.selective_scan import reference
from pallas_kernels.selective_scan.api import IMPLEMENTATIONS
from pallas_kernels.selective_scan.problem import Problem
from pallas_kernels.workload import Workload


def candidates(platform: str) -> list[Candidate]:
    del platform
    return [implementation(name) for name in ("auto", *IMPLEMENTATIONS)]


def default_names(platform: str) -> tuple[str, ...]:
    return ("auto", "xla", *{"cpu": ("reference",), "gpu": ("mosaic_gpu",), "tpu": ("mosaic_tpu",)}[platform])


def truth(workload: Workload, inputs: Any) -> Any:
    """The reference; a step is a sequence of one token."""
    rates = Problem(b=1, t=1, d=int(workload.sizes["d"]), n=int(workload.sizes["n"])).rates()

    def forward(x, delta, b, c):
        return reference.in_blocks(x, delta, rates.astype(x.dtype), b, c)[0]

    if workload.kind == "forward":
        return forward(*inputs)
    if workload.kind == "step":
        state, *token = inputs
        x, delta, b, c = (x[:, None] for x in token)
        y, state = reference.recurrence(x, delta, rates.astype(x.dtype), b, c, initial_state=state)
        return y[:, 0], state
    *arrays, dy = inputs
    y, pull_back = jax.vjp(forward, *arrays)
    return y, pull_back(dy)
