"""Calls of a compiled program, with their least times: of their bytes, matmuls and instructions, without waits."""

import dataclasses
from collections.abc import Mapping, Sequence

from pallas_kernels.compile_check import sass
from pallas_kernels.compile_check.bundles import Schedule
from pallas_kernels.compile_check.compiler_text import Kernel, in_order
from pallas_kernels.compile_check.hopper import HopperCounts, count
from pallas_kernels.compile_check.launch import Launch
from pallas_kernels.compile_check.program import instructions
from pallas_kernels.compile_check.targets import Target
from pallas_kernels.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One instruction of a program."""

    name: str
    """Name of the kernel, or the opcode."""
    bytes: float
    """Bytes moved; for operands of Mosaic GPU kernels at most the bytes that they load."""
    limits: dict[str, float]
    """Least microseconds of a run by limit: memory, matmuls, issue, MUFU."""
    times: int = 1
    hopper: HopperCounts | None = None
    tpu: Schedule | None = None

    @property
    def bound(self) -> float:
        """Least microseconds of all runs."""
        return self.times * max(self.limits.values())

    @property
    def is_kernel(self) -> bool:
        return self.hopper is not None or self.tpu is not None

    @property
    def unknown_trips(self) -> int:
        """Loops with unknown trips, counted once."""
        return sum(x.unknown_trips for x in (self.hopper, self.tpu) if x is not None)


def read_calls(
    hlo: str,
    kernels: Sequence[Kernel],
    target: Target,
    *,
    code: Sequence[sass.Kernel],
    launches: Mapping[str, Launch],
    schedules: Mapping[str, Schedule],
) -> list[Call]:
    """Calls of a program in order.

    kernels: from `compiler_text`; code: of every Mosaic GPU kernel, in order of assembly; launches: by kernel hash, as
    printed in the program; schedules: by name of the instruction.
    """
    known = {name: pair for pair in in_order(kernels, code) for name in pair[0].calls}
    found = []
    for x in instructions(hlo):
        kernel, machine_code = known.get(x.name, (None, None))
        launch = launches.get(kernel.identity or "") if kernel else None
        schedule = schedules.get(x.name) if kernel else None
        moved = x.bytes if launch is None else x.bytes - x.read + min(x.read, launch.loaded)
        counts = count(machine_code, launch) if machine_code and launch else None
        limits = {"memory": moved / target.bandwidth * 1e6}
        for part in (counts, schedule):
            limits |= {} if part is None else part.limits(target)
        name = kernel.name if kernel else x.opcode
        found.append(Call(name=name, bytes=moved, limits=limits, times=x.times, hopper=counts, tpu=schedule))
    return found


def totals(calls: Sequence[Call]) -> dict[str, float]:
    """Launches, bytes moved and least microseconds of a program."""
    return {
        "launches": sum(x.times for x in calls),
        "bytes": sum(x.times * x.bytes for x in calls),
        "bound": sum(x.bound for x in calls),
    }


def floor_microseconds(workload: Workload, target: Target) -> float:
    """Larger of bytes / bandwidth and FLOPs / peak of a workload, in microseconds."""
    return max(workload.bytes / target.bandwidth, workload.flops / target.peak_flops) * 1e6
