"""The recurrence over chunks and the general delta rule against their truths, their definitions chunk by chunk and
token by token. Public code has the former only within a whole delta rule."""

from typing import Any

import jax

from pallas_kernels.benchmark.candidates import Candidate, implementation
from pallas_kernels.delta_chunks import reference
from pallas_kernels.delta_chunks.api import IMPLEMENTATIONS
from pallas_kernels.workload import Workload


def candidates(platform: str) -> list[Candidate]:
    del platform
    return [implementation(name) for name in ("auto", *IMPLEMENTATIONS)]


def default_names(platform: str) -> tuple[str, ...]:
    return ("auto", "xla", *{"cpu": ("reference",), "gpu": ("mosaic_gpu",), "tpu": ("mosaic_tpu",)}[platform])


def truth(workload: Workload, inputs: Any) -> Any:
    """The reference; six arrays are those of the general delta rule."""
    general = len(inputs) - (workload.kind != "forward") == 6

    def forward(*arrays):
        return (reference.general_in_blocks if general else reference.recurrence)(*arrays)[0]

    if workload.kind == "forward":
        return forward(*inputs)
    *arrays, dy = inputs
    y, pull_back = jax.vjp(forward, *arrays)
    return y, pull_back(dy)
