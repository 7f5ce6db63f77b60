"""The UT transform against its truth, substitution row by row. Public code has it only within a whole delta rule."""

from typing import Any

import jax

from pallas_kernels.benchmark.candidates import Candidate, implementation
from pallas_kernels.ut_transform.api import IMPLEMENTATIONS, ut_transform
from pallas_kernels.ut_transform.workloads import outputs
from pallas_kernels.workload import Workload


def candidates(platform: str) -> list[Candidate]:
    del platform
    return [implementation(name) for name in ("auto", *IMPLEMENTATIONS)]


def default_names(platform: str) -> tuple[str, ...]:
    return ("auto", "xla", *{"cpu": ("reference",), "gpu": ("mosaic_gpu",), "tpu": ("mosaic_tpu",)}[platform])


def peers(paths: list[str], platform: str) -> tuple[list[Candidate], list[str], dict[str, str]]:
    """None."""
    del paths, platform
    return [], [], {}


def truth(workload: Workload, inputs: Any) -> Any:
    """The reference."""

    def forward(*arrays):
        return tuple(ut_transform(*arrays, implementation="reference"))

    decay = str(workload.sizes["decay"])
    if workload.kind == "forward":
        return outputs(forward(*inputs), decay)
    found, pull_back = jax.vjp(forward, *inputs[:-5])
    return outputs(found, decay), pull_back(inputs[-5:])
