"""Instructions that a Hopper kernel executes, and their least times.

Instructions of an iteration come from machine code (`sass.py`), trip counts from the lowered module (`launch.py`). Code
outside the main loops is ignored, so counts and times are lower bounds.
"""

import collections
import dataclasses
import math
import re

from pallas_kernels.compile_check.launch import Launch, ModuleLoop
from pallas_kernels.compile_check.sass import Instruction, Kernel, SassLoop, loops, matmuls, own
from pallas_kernels.compile_check.targets import Target

WARPS, SCHEDULERS = 4, 4
"""Warps of a warpgroup; schedulers of a multiprocessor, each of which issues an instruction per cycle."""
MUFU_CYCLES = 8
"""Cycles of a warp in a scheduler's special function unit (CUDA C++ Programming Guide, arithmetic instructions)."""
_HMMA = re.compile(r"HMMA\.(\d\d)(\d)(\d+)\.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopCounts:
    """Counts of a main loop, and the warpgroups that run it."""

    warpgroups: list[int]
    trips: float
    """Iterations per block, averaged over blocks."""
    instructions: dict[str, float]
    """Kind (`HGMMA.64x64x16`, `MUFU`, ...) -> instructions per iteration, including inner loops."""
    rounds: int
    """Waits for wgmma."""
    barriers: int
    """BAR instructions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HopperCounts:
    """Counts of a kernel launch."""

    blocks: int
    loops: list[LoopCounts]
    unknown_trips: int
    """Loops with unknown trips, counted once."""

    @property
    def executed(self) -> dict[str, float]:
        """Kind -> instructions issued by all warps of all blocks."""
        found: dict[str, float] = collections.defaultdict(float)
        for loop in self.loops:
            runs = self.blocks * len(loop.warpgroups) * WARPS * loop.trips
            for kind, n in loop.instructions.items():
                found[kind] += runs * n
        return dict(found)

    def limits(self, target: Target) -> dict[str, float]:
        """Least microseconds by limit."""
        executed = self.executed
        slots = target.cores * SCHEDULERS * target.clock / 1e6
        flops = sum(n * flops_of(kind) for kind, n in executed.items())
        return {
            "issue": sum(executed.values()) / slots,
            "MUFU": executed.get("MUFU", 0.0) * MUFU_CYCLES / slots,
            "matmuls": flops / target.peak_flops * 1e6,
        }


def count(kernel: Kernel, launch: Launch) -> HopperCounts:
    """Counts the main loops: outermost loops with matmuls or known trips."""
    found = loops(kernel)
    trips = match_loops(kernel, found, launch.loops)
    busy = [x for x in found if any(y == x or y in x for y in trips) or matmuls(own(kernel, x, found))]
    main, unknown = [], 0
    for loop in (x for x in busy if not any(x in y for y in busy)):
        tree = [loop, *(x for x in busy if x in loop)]
        runs: dict[int, dict[SassLoop, float]] = collections.defaultdict(dict)
        for x in tree:
            for warpgroup, times in trips.get(x, {}).items():
                runs[warpgroup][x] = times
        known = runs and not any(math.isnan(each.get(loop, 1.0)) for each in runs.values())
        unknown += not known
        by_code: dict[tuple, LoopCounts] = {}
        for warpgroup, each in (runs if known else {0: dict.fromkeys(tree, 1.0)}).items():
            counts = _loop_counts(kernel, loop, tree, each if each.get(loop) else {**each, loop: 1.0})
            same = by_code.setdefault((counts.trips, *sorted(counts.instructions.items())), counts)
            same.warpgroups.append(warpgroup)
        main += by_code.values()
    return HopperCounts(blocks=launch.grid, loops=main, unknown_trips=unknown)


def _loop_counts(kernel: Kernel, loop: SassLoop, tree: list[SassLoop], trips: dict[SassLoop, float]) -> LoopCounts:
    """Counts one iteration of `loop`; `trips` of the loops of `tree` in a warpgroup, NaN: once per iteration."""
    instructions: dict[str, float] = collections.defaultdict(float)
    rounds = barriers = 0.0
    for each in tree:
        times = trips.get(each, 0.0) / trips[loop]
        times = 1.0 if math.isnan(times) else times
        code = own(kernel, each, tree)
        for kind, n in collections.Counter(map(kind_of, code)).items():
            instructions[kind] += times * n
        rounds += times * sum(x.operation.startswith("WARPGROUP.DEPBAR") for x in code)
        barriers += times * sum(x.base == "BAR" for x in code)
    return LoopCounts(
        warpgroups=[],
        trips=trips[loop],
        instructions=dict(instructions),
        rounds=round(rounds),
        barriers=round(barriers),
    )


def match_loops(kernel: Kernel, found: list[SassLoop], module: list[ModuleLoop]) -> dict[SassLoop, dict[int, float]]:
    """SASS loop -> warpgroup -> trips per block, from the module's loop with the same matmuls (or 1 / k of them).

    In a kernel without matmuls, the longest loop matches the module's loop with most trips.
    """
    if found and module and not matmuls(kernel.code) and not any(x.wgmma for x in module):
        longest, most = max(found, key=lambda x: x.last - x.first), max(module, key=lambda x: x.trips)
        return {longest: {x.warpgroup: x.trips for x in module if x.index == most.index}}
    waiting: dict[int, list[ModuleLoop]] = collections.defaultdict(list)
    for loop in module:
        if loop.wgmma:
            waiting[loop.index].append(loop)
    matches = {}
    for loop in found:
        counts = matmuls(own(kernel, loop, found))
        options = [(_multiple(counts, group[0].wgmma), index) for index, group in waiting.items()]
        factor, index = min((x for x in options if x[0]), default=(0, 0))
        if counts and factor:
            matches[loop] = {x.warpgroup: x.trips / factor for x in waiting.pop(index)}
    return matches


def _multiple(counts: dict[int, int], of: dict[str, int]) -> int:
    """k if counts = k x of, else 0."""
    columns = {int(n): times for n, times in of.items()}
    if not columns or counts.keys() != columns.keys():
        return 0
    factors = {counts[n] / times for n, times in columns.items()}
    return int(factors.pop()) if len(factors) == 1 and all(x.is_integer() for x in factors) else 0


def kind_of(x: Instruction) -> str:
    """Name of the operation, for matmuls with the shape."""
    return ".".join(x.operation.split(".")[:2]) if x.base in ("HGMMA", "HMMA") else x.base


def flops_of(kind: str) -> int:
    """FLOPs of one instruction of a warp: HGMMA (a quarter) or HMMA, else 0."""
    if kind.startswith("HGMMA."):
        rows, columns, depth = map(int, kind.split(".")[1].split("x"))
        return 2 * rows * columns * depth // WARPS
    found = _HMMA.match(f"{kind}.")
    return 2 * math.prod(map(int, found.groups())) if found else 0
