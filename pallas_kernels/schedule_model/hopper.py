"""Predicts the time of a Hopper kernel from its machine code and its launch; no device has to be there.

Time = waves x cycles of a block / clock, and never less than its bytes need. A block takes as long as the warpgroup
whose loops take longest: trips (`launch.py`) x cycles an iteration (`pipeline.py`), simulated together with the other
warpgroups of its block and the other blocks on its multiprocessor, and `OVERHEAD`.
"""

import collections
import dataclasses
import math
from collections.abc import Sequence

from pallas_kernels.compile_check.targets import Target
from pallas_kernels.schedule_model.launch import Launch, ModuleLoop
from pallas_kernels.schedule_model.pipeline import Rates, Step, decode, simulate
from pallas_kernels.schedule_model.sass import Kernel, SassLoop, loops, matmuls, own

OVERHEAD = 2000.0
"""Cycles of a block outside its loops: barriers set up, the first loads from HBM, the last stores to it. Assumed."""
REGISTERS, SHARED_MEMORY, THREADS, SHARED_MEMORY_RESERVED = 65536, 228 * 1024, 2048, 1024
"""Limits of a multiprocessor of compute capability 9.0, and each block's reserved bytes (CUDA programming
guide)."""
_MOST_STEPS = 40_000
"""Instructions that one simulation follows, at most about."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """The main loop of the warpgroups that share its code."""

    warpgroups: list[int]
    cycles: float
    """An iteration, together with the others."""
    trips: float
    """A block."""
    instructions: int
    """An iteration; inner loops as often as they run."""
    matmuls: dict[int, int]
    """Columns n -> HGMMA an iteration."""
    rounds: int
    """Waits for wgmma to finish, an iteration: what cannot overlap."""
    barriers: int
    """BAR an iteration: warps of a warpgroup, or warpgroups, that wait for each other."""
    waits: dict[str, float]
    """Cycles an iteration, by what they wait for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """A kernel on a GPU."""

    microseconds: float
    schedule: float
    """Microseconds of the schedule, whatever memory does."""
    blocks: int
    resident: int
    """Blocks that a multiprocessor holds."""
    waves: int
    roles: list[Role]
    issue: float
    """Share of issue slots used, in the main loops."""
    tensor: float
    """Share of the tensor cores' cycles used, in the main loops."""
    unknown_trips: int = 0
    """Loops with matmuls counted once, because how often they run is not known."""


@dataclasses.dataclass(frozen=True)
class _MainLoop:
    warpgroup: int
    loop: SassLoop
    steps: tuple[Step, ...]
    trips: float
    most: float


def predict(kernel: Kernel, launch: Launch, registers: int, n_bytes: float, target: Target) -> Prediction:
    """The time of one launch that moves `n_bytes`; `registers` a thread as ptxas says."""
    main, unknown = _main_loops(kernel, launch)
    resident = max(1, min(blocks_per_multiprocessor(launch, registers), math.ceil(launch.grid / target.cores)))
    waves = math.ceil(launch.grid / (target.cores * resident))
    last = math.ceil((launch.grid - (waves - 1) * target.cores * resident) / target.cores)
    cycles, rates, phases = _block(main, resident, mean=waves > 1)
    total = (waves - 1) * cycles + (cycles if last == resident else _block(main, last, mean=waves > 1)[0])
    schedule = total / target.clock * 1e6
    return Prediction(
        microseconds=max(schedule, n_bytes / target.bandwidth * 1e6),
        schedule=schedule,
        blocks=launch.grid,
        resident=resident,
        waves=waves,
        roles=_roles(kernel, phases, rates),
        issue=max((r.issue for r in rates), default=0.0),
        tensor=max((r.tensor for r in rates), default=0.0),
        unknown_trips=unknown,
    )


def blocks_per_multiprocessor(launch: Launch, registers: int) -> int:
    """Blocks that registers, shared memory and threads let a multiprocessor hold."""
    per_warp = math.ceil(registers * 32 / 256) * 256
    return min(
        REGISTERS // (per_warp * math.ceil(launch.threads / 32)),
        SHARED_MEMORY // (launch.shared_memory + SHARED_MEMORY_RESERVED),
        THREADS // launch.threads,
    )


def _main_loops(kernel: Kernel, launch: Launch) -> tuple[list[_MainLoop], int]:
    """The loops with matmuls of every warpgroup, outermost only, inner ones unrolled into them; and how many are
    unknown."""
    found = loops(kernel)
    matches = match_loops(kernel, found, launch.loops)
    busy = [x for x in found if any(y == x or y in x for y in matches) or matmuls(own(kernel, x, found))]
    main, unknown = [], 0
    for loop in (x for x in busy if not any(x in y for y in busy)):
        tree = [loop, *(x for x in busy if x in loop)]
        runs: dict[int, dict[SassLoop, tuple[float, float]]] = collections.defaultdict(dict)
        for x in tree:
            for warpgroup, trips, most in matches.get(x, []):
                runs[warpgroup][x] = (trips, most)
        if not runs:
            unknown += 1
            runs[0][loop] = (1.0, 1.0)
        for warpgroup, trips in runs.items():
            count, most = trips.get(loop, (1.0, 1.0))
            if not count or math.isnan(count):
                unknown += math.isnan(count)
                count, most = 1.0, 1.0
            steps = _unrolled(kernel, loop, tree, {x: t[0] for x, t in trips.items()}, count)
            main.append(_MainLoop(warpgroup, loop, tuple(steps), count, most))
    return main, unknown


def _unrolled(kernel: Kernel, loop: SassLoop, tree: list[SassLoop], trips: dict, count: float) -> list[Step]:
    """The instructions of one iteration, with those of each inner loop as often as it runs in it."""
    inner = [x for x in tree if x in loop and not any(x in y and y in loop for y in tree)]
    steps, place = [], loop.first
    for x in sorted(inner, key=lambda x: x.first):
        steps += decode(kernel.code[place : x.first])
        times = round(trips.get(x, 0.0) / count) if not math.isnan(trips.get(x, 0.0)) else 1
        steps += _unrolled(kernel, x, tree, trips, trips.get(x) or 1.0) * times
        place = x.last + 1
    return steps + decode(kernel.code[place : loop.last + 1])


def match_loops(
    kernel: Kernel, found: list[SassLoop], module: list[ModuleLoop]
) -> dict[SassLoop, list[tuple[int, float, float]]]:
    """SASS loop -> (warpgroup, trips a block, most) of those that run it: the loop of the module with the same
    matmuls.

    Loops with equal matmuls are taken in the order of both texts. A multiple of a loop's matmuls is the loop unrolled.
    In a kernel without matmuls the longest loop is the one that the module runs most often.
    """
    if found and module and not matmuls(kernel.code) and not any(x.wgmma for x in module):
        longest, most = max(found, key=lambda x: x.last - x.first), max(module, key=lambda x: x.trips)
        return {longest: [(x.warpgroup, x.trips, x.most) for x in module if x.index == most.index]}
    waiting: dict[int, list[ModuleLoop]] = collections.defaultdict(list)
    for loop in module:
        if loop.wgmma:
            waiting[loop.index].append(loop)
    matches = {}
    for loop in found:
        counts = matmuls(own(kernel, loop, found))
        options = [(_multiple(counts, _columns(group[0])), index) for index, group in waiting.items()]
        best = min((x for x in options if x[0]), default=None)
        if counts and best is not None:
            factor, index = best
            matches[loop] = [(x.warpgroup, x.trips / factor, x.most / factor) for x in waiting.pop(index)]
    return matches


def _columns(loop: ModuleLoop) -> dict[int, int]:
    return {int(n): count for n, count in loop.wgmma.items()}


def _multiple(counts: dict[int, int], of: dict[int, int]) -> int:
    """k where counts = k x of, else 0."""
    if not of or counts.keys() != of.keys():
        return 0
    factor = counts[next(iter(of))] // of[next(iter(of))]
    return factor if all(counts[n] == factor * of[n] for n in of) else 0


def _block(main: list[_MainLoop], resident: int, *, mean: bool) -> tuple[float, list[Rates], list[list[_MainLoop]]]:
    """Cycles of a block, and their simulations: the n-th loops of all warpgroups run at the same time."""
    programs: dict[int, list[_MainLoop]] = collections.defaultdict(list)
    for loop in main:
        programs[loop.warpgroup].append(loop)
    phases = [
        [program[n] for program in programs.values() if n < len(program)]
        for n in range(max(map(len, programs.values()), default=0))
    ]
    spent: collections.Counter = collections.Counter()
    rates = []
    for phase in phases:
        bodies = [x.steps for x in phase] * resident
        turns = max(6, min(14, _MOST_STEPS // max(1, sum(map(len, bodies)))))
        together = max(x.trips for x in phase) < 1.1 * min(x.trips for x in phase)  # warpgroups that share their chunks
        blocks = [i if together else i * len(phase) + n for i in range(resident) for n in range(len(phase))]
        rates.append(simulate(bodies, turns=turns, block=blocks))
        for i, x in enumerate(phase):
            each = max(rates[-1].cycles[i :: len(phase)])
            spent[x.warpgroup] += each * (x.trips if mean else x.most)
    return max(spent.values(), default=0.0) + OVERHEAD, rates, phases


def _roles(kernel: Kernel, phases: list[list[_MainLoop]], rates: Sequence[Rates]) -> list[Role]:
    found = loops(kernel)
    roles = []
    for phase, rate in zip(phases, rates, strict=True):
        for loop in dict.fromkeys(x.loop for x in phase):
            mine = [i for i, x in enumerate(phase) if x.loop == loop]
            steps = phase[mine[0]].steps
            slowest = max(mine, key=lambda i: rate.cycles[i])
            roles.append(
                Role(
                    warpgroups=[phase[i].warpgroup for i in mine],
                    cycles=rate.cycles[slowest],
                    trips=phase[mine[0]].trips,
                    instructions=len(steps),
                    matmuls=matmuls(own(kernel, loop, found)),
                    rounds=sum(x.pending is not None for x in steps),
                    barriers=sum(x.base == "BAR" for x in steps),
                    waits=rate.waits[slowest],
                )
            )
    return roles
