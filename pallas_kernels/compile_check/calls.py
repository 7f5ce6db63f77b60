"""Calls of a compiled program, read from its HLO, with their least times: of bytes, matmuls and instructions."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from pallas_kernels.compile_check import sass
from pallas_kernels.compile_check.bundles import Schedule
from pallas_kernels.compile_check.compiler_text import Kernel, in_order
from pallas_kernels.compile_check.hopper import HopperCounts, count
from pallas_kernels.compile_check.launch import Launch
from pallas_kernels.compile_check.targets import Target
from pallas_kernels.workload import Workload

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) (?P<opcode>[\w\-]+)\((?P<operands>[^)]*)\)"
)
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_BODY = re.compile(r"\bbody=%([\w.\-]+)")
_CALLED = re.compile(r"\bto_apply=%([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_FREE = (
    "parameter", "constant", "bitcast", "get-tuple-element", "tuple", "after-all", "partition-id", "replica-id",
    "copy-done", "async-done", "slice-done", "opt-barrier",
)  # fmt: skip
"""Opcodes that move nothing, or are counted at their start."""
_VMEM = "S(1)"
"""Layout of an array in a TPU's VMEM."""
_SIZES = {"pred": 1, "bf16": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction that takes time."""

    name: str
    opcode: str
    text: str
    """Line of the HLO text."""
    read: float
    """Bytes of the operands, each counted once."""
    bytes: float
    """Bytes of operands and results."""
    times: int
    """Number of runs."""


def instructions(hlo: str) -> list[Instruction]:
    """Instructions of a program in order; loops with unknown trips count once."""
    computations: dict[str, list[re.Match]] = {}
    entry = current = ""
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            current = header[2]
            entry = current if header[1] else entry
            computations[current] = []
        elif current and (found := _INSTRUCTION.match(line)):
            computations[current].append(found)
    return _run(computations, entry, 1)


def _run(computations: dict[str, list[re.Match]], name: str, times: int) -> list[Instruction]:
    sizes: dict[str, float] = {}
    found = []
    for match in computations.get(name, []):
        sizes[match["name"]] = array_bytes(match["type"])
        line = match.string
        if match["opcode"] in ("while", "call") and (called := (_BODY.search(line) or _CALLED.search(line))):
            trips = _TRIPS.search(line)
            found += _run(computations, called[1], times * (int(trips[1]) if trips else 1))
        elif match["opcode"] not in _FREE and not _prefetches(match):
            read = sum(sizes.get(x, 0.0) for x in set(_OPERAND.findall(match["operands"])))
            moved = read * 2 if match["opcode"] == "copy-start" else read + sizes[match["name"]]
            found.append(
                Instruction(name=match["name"], opcode=match["opcode"], text=line, read=read, bytes=moved, times=times)
            )
    return found


def _prefetches(match: re.Match) -> bool:
    """Whether an array is prefetched to VMEM: its bytes count at its use."""
    return match["opcode"] == "copy-start" and _VMEM in match["type"].split("}")[0]


def array_bytes(types: str) -> float:
    """Bytes of the arrays in a type, e.g. `(bf16[4,8]{1,0}, f32[])`."""
    total = 0.0
    for element, dimensions in _ARRAY.findall(types):
        bits = re.search(r"\d+", element)
        size = _SIZES.get(element) or (int(bits[0]) / 8 if bits else 0)
        total += size * math.prod(int(n) for n in dimensions.split(",") if n)
    return total


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
    """Calls of a program; `code` in order of assembly, `launches` by kernel hash, `schedules` by instruction."""
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
