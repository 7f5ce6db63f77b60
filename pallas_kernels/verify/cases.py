"""The kernels' cases by platform, smallest first, forward before backward; timed calls.

Lengths: one chunk of 64; one token more; 72, 120 and 200, where copies end within a chunk; 8184, the same when long.
Of a long case only the last row is compared; a short case with two rows tells them apart.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from pallas_kernels import triton_packages
from pallas_kernels.benchmark import programs, timing
from pallas_kernels.kernel_sources import TRITON
from pallas_kernels.registry import FUSED, OPS, load, native
from pallas_kernels.workload import Workload

PLATFORMS = ("gpu", "tpu", "cpu")


def _cases(platform: str) -> list:
    found = [case for op in (*OPS, *FUSED) for case in load(op, "workloads").CASES[platform]]
    if triton_packages.missing() is not None:
        found = [case for case in found if case.implementation != TRITON]
    elif platform == "gpu":
        found += _triton_cases(found)
    return sorted(found, key=lambda case: (case.b * case.h * case.t, case.backward))


def _triton_cases(cases: list) -> list:
    """The cases of other kernels that Triton kernels serve."""
    found = {case.name: case for case in cases}
    for case in cases:
        backend = case.OP.backends.get(TRITON)
        as_triton = dataclasses.replace(case, implementation=TRITON)
        if backend is not None and backend.objection(as_triton.problem) is None:
            found.setdefault(as_triton.name, as_triton)
    return list(found.values())[len(cases) :]


CASES = {platform: _cases(platform) for platform in PLATFORMS}
"""Lists of `KernelCase` by the platform that JAX finds; on a CPU the kernels are interpreted. Cases of Triton kernels
are left out if their packages are not installed."""


class TimedCall(NamedTuple):
    """One workload with one implementation."""

    workload: Workload
    implementation: str
    seconds: float = 0.3
    """Duration of the measurement."""

    @property
    def name(self) -> str:
        return f"{self.workload.op} {self.workload.kind} {self.workload.name} {self.implementation}"

    def compiled(self) -> Callable[[], dict[str, float]]:
        """Function that measures one call; `ms` is the median."""
        import jax

        workload = self.workload
        n_sets, calls = programs.plan(workload, jax.default_backend())
        inputs = workload.abstract_inputs()
        compiled = programs.lower(workload.build(self.implementation), inputs, calls).compile()

        def run():
            sets = [workload.inputs(1000 * i) for i in range(n_sets)]
            program = programs.JaxProgram(compiled, sets, calls)
            program.start()
            return timing.measure(program.batch, calls=calls, seconds=self.seconds, repeats=20).milliseconds

        return run


def headline(platform: str) -> list[TimedCall]:
    """All workloads of the groups headline and channel with all implementations of the platform."""
    cases = {(case.name.split()[0], case.implementation) for case in CASES[platform]}
    return [
        TimedCall(workload, implementation)
        for op in (*OPS, *(op for op in FUSED if (op, TRITON) in cases))
        for group in ("headline", "channel")
        for workload in load(op, "workloads").GROUPS.get(group, ())
        for implementation in (*native(op, platform), *[TRITON] * ((op, TRITON) in cases), "xla")
    ]


TIMES = {
    "gpu": headline("gpu"),
    "tpu": headline("tpu"),
    "cpu": [TimedCall(load("taylor_attention", "workloads").GROUPS["cpu"][0], "xla", seconds=0.2)],
}
"""Calls by platform; on a CPU a single one."""
