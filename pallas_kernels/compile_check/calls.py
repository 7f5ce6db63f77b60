"""Calls of a compiled program: kernels by what they execute, XLA's operations by their bytes.

The bound of a call is the longest of the times that its bytes, matmuls and instructions need at the target's rates.
Launches, latencies and what they wait for each other are not in it.
"""

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
    """Bytes moved; of a Mosaic GPU kernel's operands at most what it loads, which may be less than all of them."""
    limits: dict[str, float]
    """Microseconds of a run at least, by what limits it: memory, matmuls, issue, MUFU."""
    times: int = 1
    hopper: HopperCounts | None = None
    tpu: Schedule | None = None

    @property
    def bound(self) -> float:
        """Microseconds of all runs, at least."""
        return self.times * max(self.limits.values())

    @property
    def is_kernel(self) -> bool:
        return self.hopper is not None or self.tpu is not None

    @property
    def unknown_trips(self) -> int:
        """Loops counted once, because how often they run is not known."""
        return sum(x.unknown_trips for x in (self.hopper, self.tpu) if x is not None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dumps:
    """Files that the compilers wrote next to the program."""

    sass: str = ""
    """nvdisasm's text of every Mosaic GPU kernel, in the order of assembly."""
    launches: dict[str, Launch] = dataclasses.field(default_factory=dict)
    """By the hash of the kernel, as the program prints it."""
    schedules: dict[str, Schedule] = dataclasses.field(default_factory=dict)
    """By the name of the instruction."""


def read_calls(hlo: str, kernels: list[Kernel], dumps: Dumps, target: Target) -> list[Call]:
    """The program's calls in order; `kernels` as `compiler_text` reads them."""
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
    """Time of the compulsory bytes at the memory's bandwidth, or of the useful operations at the matmul units' peak."""
    return max(workload.bytes / target.bandwidth, workload.flops / target.peak_flops) * 1e6
