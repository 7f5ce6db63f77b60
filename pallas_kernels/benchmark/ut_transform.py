"""The UT transform against its truth, substitution row by row. Public code has it only within a whole delta rule."""

from typing import Any

from pallas_kernels.benchmark.candidates import Candidate, implementation
from pallas_kernels.delta_chunks import reference as recurrence
from pallas_kernels.ut_transform import specs
from pallas_kernels.ut_transform.api import IMPLEMENTATIONS, ut_transform
from pallas_kernels.ut_transform.problem import ValuesProblem
from pallas_kernels.ut_transform.workloads import evaluate
from pallas_kernels.workload import Workload


def candidates(platform: str) -> list[Candidate]:
    del platform
    return [implementation(name) for name in ("auto", *IMPLEMENTATIONS)]


def default_names(platform: str) -> tuple[str, ...]:
    return ("auto", "xla", *{"cpu": ("reference",), "gpu": ("mosaic_gpu",), "tpu": ("mosaic_tpu",)}[platform])


def truth(workload: Workload, inputs: Any) -> Any:
    """The reference; of `delta_values` with that of the recurrence."""
    spec = specs.SPECS[workload.name]

    def run(k, *others):
        if not isinstance(spec, ValuesProblem):
            return tuple(ut_transform(k, *others, implementation="reference"))
        v, *others = others
        mix, read, write, keep, keys = ut_transform(k, *others, implementation="reference")
        return recurrence.recurrence(v, read, write, mix, keep)[0], keys

    return evaluate(run, spec, workload.kind, inputs)
