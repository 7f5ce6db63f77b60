"""A timing model of one of the four schedulers of a Hopper multiprocessor.

Warpgroups have a warp on each scheduler, and the four are alike, so one warp of each warpgroup is followed. Warps
issue in order, one instruction a cycle among them; the control codes say when the next may issue and what it waits
for. The tensor core, shared memory (for LDSM and STSM) and the unit of MUFU are queues.

Assumed, not measured: HGMMA 64 x n x 16 holds the tensor core n/2 cycles (4096 operations per cycle and
multiprocessor), at least 16; 30 cycles from issue to its start, 16 from its end to a waiting warp; `LATENCY`; HMMA, the
product of one warp, at half that rate, and 33 cycles until another can add to its result. Left out:
how long TMA and HBM take, the shared memory that wgmma itself reads (128 bytes per cycle with both operands there and n
= 64: exactly what there is), and barriers between warpgroups, for which a warpgroup is at most `AHEAD` rounds before
the last.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Sequence

from pallas_kernels.schedule_model.sass import Instruction

LATENCY = {
    "BAR": 26, "LDSM": 33, "LDS": 29, "MUFU": 22, "SHFL": 24, "SYNCS": 26, "MEMBAR": 22, "FENCE": 14, "LDG": 650,
    "LD": 650, "UTMALDG": 24, "UTMASTG": 24, "R2UR": 12, "S2R": 20, "LDC": 40, "ULDC": 10, "I2F": 20, "CCTL": 20,
    "DEPBAR": 10,
}  # fmt: skip
"""Cycles until the result of an operation is there; 0 for others, whose stall counts say it."""
READING = {"STSM": 14, "STS": 12, "STG": 16, "ST": 16}
"""Cycles until its operands are read; others as LATENCY, or 10."""
START, DRAIN = 30, 16
"""Cycles from the issue of a wgmma to its start, and from its end to a warp that waits for it."""
HMMA, SUM = 8, 33
"""Cycles that an m16n8k16 of one warp holds the tensor core, and until its sum is there."""
MUFU = 8
"""Cycles that an instruction keeps the unit of MUFU."""
TURN = 8
"""Cycles that the branch at the end of a loop takes, at least."""
AHEAD = 2
"""Iterations that a warpgroup may be before the slowest one of its block."""


@dataclasses.dataclass(frozen=True)
class Step:
    """An instruction, decoded once."""

    base: str
    waits: tuple[int, ...]
    read: int | None
    write: int | None
    stall: int
    tensor: float
    """Cycles of the tensor core."""
    commits: bool
    """Whether a group of wgmmas ends here."""
    pending: int | None
    """Groups that a wait leaves in flight."""
    shared: int
    """Cycles of shared memory."""
    sums: tuple[str, ...] = ()
    """The registers of an HMMA's result and of its addend."""


def decode(code: Sequence[Instruction]) -> list[Step]:
    return [_decode(x) for x in code]


@functools.lru_cache(maxsize=100_000)
def _decode(x: Instruction) -> Step:
    base = x.base
    pending = re.search(r"gsb0, (0x\w+)", x.text) if x.operation.startswith("WARPGROUP.DEPBAR") else None
    matrices = 4 if ".4" in x.operation else 2 if ".2" in x.operation else 1
    return Step(
        base=base,
        waits=x.waits,
        read=x.read,
        write=x.write,
        stall=max(1, x.stall, LATENCY["BAR"] if base == "BAR" else 0),
        tensor=max(x.columns / 2, 16) if base == "HGMMA" else HMMA if base == "HMMA" else 0,
        commits=base == "HGMMA" and "gsb0" in x.text,
        pending=int(pending[1], 16) if pending else None,
        shared=4 * matrices if base in ("LDSM", "STSM") else 0,
        sums=tuple(re.findall(r"R\w+", x.text)[i] for i in (0, -1)) if base == "HMMA" else (),
    )


@dataclasses.dataclass
class Warp:
    """A warp that runs `steps` again and again."""

    steps: list[Step]
    next: float
    """Cycle at which its stalls let it go on."""
    place: int = 0
    turns: list[float] = dataclasses.field(default_factory=list)
    """When each iteration ended."""
    last: float = 0.0
    boards: list[float] = dataclasses.field(default_factory=lambda: [0.0] * 8)
    groups: list[float] = dataclasses.field(default_factory=list)
    """When the wgmma groups end."""
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    """When the results of HMMA are there, by register."""
    waited: dict[str, float] = dataclasses.field(default_factory=lambda: collections.defaultdict(float))

    def ready(self, mufu: float) -> tuple[float, str]:
        """The cycle at which the next instruction may issue, and what held it."""
        step, at, why = self.steps[self.place], self.next, "issue"
        for board in step.waits:
            if self.boards[board] > at:
                at, why = self.boards[board], "scoreboard"
        if step.pending is not None:
            done = self.groups[: len(self.groups) - step.pending]
            if done and max(done) + DRAIN > at:
                at, why = max(done) + DRAIN, "wgmma"
        if step.sums and self.sums.get(step.sums[1], 0.0) > at:
            at, why = self.sums[step.sums[1]], "scoreboard"
        if step.base == "MUFU" and mufu > at:
            at, why = mufu, "mufu"
        return at, why


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """Result of a simulation."""

    cycles: list[float]
    """An iteration, by warp."""
    waits: list[dict[str, float]]
    """Cycles an iteration that each warp waited, by reason."""
    issue: float
    """Share of issue slots used."""
    tensor: float
    """Share of the tensor core's cycles used."""


class _Scheduler:
    """The scheduler's issue slot, and the units that its warps share with those of the other three."""

    def __init__(self):
        self.now = self.tensor = self.shared = self.mufu = self.busy = 0.0
        self.issued = 0

    def issue(self, warp: Warp) -> None:
        """Issues the warp's next instruction as soon as it may, and moves the warp on."""
        ready, why = warp.ready(self.mufu)
        at, step = max(ready, self.now), warp.steps[warp.place]
        warp.waited[why] += max(0.0, at - warp.next)
        end = self._run(step, warp, at)
        if step.write is not None:
            warp.boards[step.write] = max(warp.boards[step.write], end)
        if step.read is not None:
            reading = READING.get(step.base, LATENCY.get(step.base, 10))
            warp.boards[step.read] = max(warp.boards[step.read], at + reading)
        self.now, self.issued = at + 1, self.issued + 1
        warp.next, warp.last, warp.place = at + step.stall, at, warp.place + 1
        if warp.place == len(warp.steps):
            warp.place, warp.next = 0, at + max(TURN, step.stall)
            warp.turns.append(at)

    def _run(self, step: Step, warp: Warp, at: float) -> float:
        """Takes the units that the instruction needs; returns when its result is there."""
        if step.tensor:
            self.tensor = max(self.tensor, at + (0 if step.sums else START)) + step.tensor
            if step.sums:
                warp.sums[step.sums[0]] = self.tensor - HMMA + SUM
            self.busy += step.tensor
            if step.commits:
                warp.groups = [*warp.groups, self.tensor][-8:]
        if step.base == "MUFU":
            self.mufu = at + MUFU
        if step.shared:
            begin = max(self.shared, at)
            self.shared = begin + step.shared
            return begin + LATENCY.get(step.base, READING["STSM"])
        return at + LATENCY.get(step.base, 0)


def simulate(bodies: Sequence[Sequence[Step]], *, turns: int = 14, skip: int = 4, block: Sequence[int] = ()) -> Rates:
    """Runs one warp for each body, `turns` times; the first `skip` iterations are not measured.

    block: number of the block that each warp belongs to; warps of one block keep together as `AHEAD` says.
    """
    scheduler = _Scheduler()
    warps = [Warp(list(body), 37.0 * i) for i, body in enumerate(bodies)]
    blocks: dict[int, list[Warp]] = collections.defaultdict(list)
    for number, warp in zip(block or range(len(warps)), warps, strict=True):
        blocks[number].append(warp)
    while any(len(warp.turns) < turns for warp in warps):
        free = []
        for members in blocks.values():
            most = min(turns, min(len(warp.turns) for warp in members) + AHEAD + 1)
            free += [warp for warp in members if len(warp.turns) < most]
        scheduler.issue(min(free, key=lambda warp: (warp.ready(scheduler.mufu)[0], warp.last)))
    end = max(warp.turns[-1] for warp in warps)
    return Rates(
        cycles=[(warp.turns[-1] - warp.turns[skip - 1]) / (turns - skip) for warp in warps],
        waits=[{why: n / turns for why, n in warp.waited.items() if why != "issue"} for warp in warps],
        issue=scheduler.issued / end,
        tensor=scheduler.busy / end,
    )
