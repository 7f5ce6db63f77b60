"""Calls of a compiled program, with their least times: of their bytes, matmuls and instructions, without waits."""

import dataclasses

from pallas_kernels.compile_check import sass
from pallas_kernels.compile_check.bundles import Schedule
from pallas_kernels.compile_check.compiler_text import Kernel
from pallas_kernels.compile_check.hopper import HopperCounts, count
from pallas_kernels.compile_check.launch import Launch
from pallas_kernels.compile_check.program import Instruction, instructions
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dumps:
    """Files written by the compilers."""

    sass: str = ""
    """Output of nvdisasm for every Mosaic GPU kernel, in order of assembly."""
    launches: dict[str, Launch] = dataclasses.field(default_factory=dict)
    """Launches by kernel hash, as printed in the program."""
    schedules: dict[str, Schedule] = dataclasses.field(default_factory=dict)
    """Schedules by name of the instruction."""


def read_calls(hlo: str, kernels: list[Kernel], dumps: Dumps, target: Target) -> list[Call]:
    """Calls of a program in order; `kernels` from `compiler_text`."""
    waiting = sass.read_sass(dumps.sass)
    known: dict[str, tuple[Kernel, sass.Kernel | None]] = {}
    for kernel in kernels:
        code = next((x for x in waiting if x.name == kernel.name), None)
        if code is not None:
            waiting.remove(code)
        known |= dict.fromkeys(kernel.calls, (kernel, code))
    return [_call(x, *known.get(x.name, (None, None)), dumps, target) for x in instructions(hlo)]


def _call(x: Instruction, kernel: Kernel | None, code: sass.Kernel | None, dumps: Dumps, target: Target) -> Call:
    if kernel is None:
        return Call(name=x.opcode, bytes=x.bytes, limits=_memory(x.bytes, target), times=x.times)
    launch, schedule = dumps.launches.get(kernel.identity or ""), dumps.schedules.get(x.name)
    moved = x.bytes if launch is None else x.bytes - x.read + min(x.read, launch.loaded)
    limits, counts = _memory(moved, target), None
    if code is not None and launch is not None:
        counts = count(code, launch)
        limits |= counts.limits(target)
    if schedule is not None:
        limits |= schedule.limits(target)
    return Call(name=kernel.name, bytes=moved, limits=limits, times=x.times, hopper=counts, tpu=schedule)


def _memory(n_bytes: float, target: Target) -> dict[str, float]:
    return {"memory": n_bytes / target.bandwidth * 1e6}


def floor_microseconds(workload: Workload, target: Target) -> float:
    """Larger of bytes / bandwidth and FLOPs / peak of a workload, in microseconds."""
    return max(workload.bytes / target.bandwidth, workload.flops / target.peak_flops) * 1e6
