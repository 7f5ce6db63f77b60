"""Parser of libtpu's final schedule of a Pallas kernel.

A TPU core issues one bundle (a VLIW instruction) per cycle: a kernel takes at least as many cycles as bundles run in
the loop over the grid. Matrix units may need longer, so their rows are counted too.

A line is one bundle; `>` after its label counts the loops around it:

       0xd   :  { %21 = vsyncpa ... }
      0x12 LB: > { ... }                                                first of a loop's body
      0x7f LB: >> { ... }                                               of a loop within it
    0x2356   : > { %p24_p9 = scmp.ge.s32.totalorder %s27_s30, 258 /* loop exit test */ }
"""

import collections
import dataclasses
import re
from pathlib import Path

from pallas_kernels.compile_check.targets import Target

_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(?P<label>\w\w)?\s*:\s*(?P<loops>[>\s]*)")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (?P<bound>\S+) /\* loop exit test")
_MATMUL = re.compile(r"\bvmatmul\.(?:[a-z]+\.)*?(bf16|f32|[su]8|f8\w*)\b")
_ROWS = {"bf16": 16, "f32": 8}
"""Rows of a vmatmul: eight sublanes, packed where an element has less than 32 bits."""
_FILE = re.compile(r"\d+-([A-Za-z][\w.\-]*)-\d+-final_")
_UNCOUNTED = ("VLOAD:FILL", "VSTORE:SPILL")
"""Columns that are contained in others: spilled registers, loaded and stored."""


@dataclasses.dataclass
class Loop:
    """A loop of a kernel: bundles `first` to `last`, inclusive."""

    depth: int
    first: int
    last: int
    trips: int | None = None
    """None: unknown bound."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Schedule of a kernel on a TPU core."""

    bundles: float
    """Bundles of a grid step, with trips of inner loops and both sides of every branch."""
    steps: int
    """Trips of the loop over the grid: the grid points, and up to two more for the pipeline."""
    units: dict[str, float]
    """Unit -> share of its slots in use."""
    fills: float
    """Share of load slots that reload spilled registers."""
    spills: float
    """Share of store slots that spill registers."""
    rows: float = 0.0
    """Rows that a step streams through all matrix units."""
    unknown_trips: int = 0
    """Loops with unknown bounds, counted once."""

    def limits(self, target: Target) -> dict[str, float]:
        """Least microseconds of bundles and of matmuls (with padding), by limit."""
        flops = 2 * self.rows * self.steps * target.matrix_unit**2
        return {
            "issue": self.bundles * self.steps / target.clock * 1e6,
            "matmuls": flops / target.peak_flops * 1e6,
        }

    @property
    def fullest(self) -> str:
        return max(self.units, key=self.units.__getitem__)


def read_schedule(bundles: str, utilization: str) -> Schedule:
    """Reads `*-final_bundles.txt` and `*-final_hlo-static-per-bundle-utilization.txt` of one kernel."""
    lines = [(m, line) for line in bundles.splitlines() if (m := _BUNDLE.match(line))]
    loops = _loops(lines)
    whole = Loop(0, 0, len(lines) - 1, 1)
    grid = max((x for x in loops if x.depth == 1), key=lambda x: x.last - x.first, default=whole)
    weights = [1] * len(lines)
    for loop in loops:
        if loop.depth > grid.depth and grid.first <= loop.first <= loop.last <= grid.last:
            for i in range(loop.first, loop.last + 1):
                weights[i] *= loop.trips or 1
    inside = range(grid.first, grid.last + 1)
    total = sum(weights[i] for i in inside)
    _, units, slots, _, *table = utilization.splitlines()
    rows = [list(map(int, line.split())) for line in table if line.strip()]
    shares = {}
    for k, (unit, count) in enumerate(zip(units.split(","), slots.split(), strict=True)):
        used = sum(rows[i][k] * weights[i] for i in inside if i < len(rows))
        shares[unit.strip()] = used / (total * int(count))
    fill, spill = (shares.pop(name, 0.0) for name in _UNCOUNTED)
    return Schedule(
        bundles=total,
        steps=grid.trips or 1,
        units=shares,
        fills=fill,
        spills=spill,
        rows=sum(weights[i] * _ROWS.get(kind, 32) for i in inside for kind in _MATMUL.findall(lines[i][1])),
        unknown_trips=sum(x.trips is None for x in loops),
    )


def read_schedules(folder: Path) -> dict[str, Schedule]:
    """Schedules in a folder, by the name of the instruction in the program."""
    texts: dict[str, list[str]] = collections.defaultdict(list)
    for kind in ("bundles", "hlo-static-per-bundle-utilization"):
        for file in folder.glob(f"*-final_{kind}.txt"):
            if named := _FILE.match(file.name):
                texts[named[1]].append(file.read_text(errors="replace"))
    return {name: read_schedule(*found) for name, found in texts.items() if len(found) == 2}


def _loops(lines: list[tuple[re.Match, str]]) -> list[Loop]:
    """Loops in order of their first bundles."""
    found, open_loops = [], []
    for i, (match, line) in enumerate(lines):
        depth = match["loops"].count(">")
        if match["label"] == "LB":
            open_loops = [x for x in open_loops if x.depth < depth]
            open_loops.append(Loop(depth, i, i))
            found.append(open_loops[-1])
        for loop in open_loops:
            if loop.depth <= depth:
                loop.last = i
        if test := _EXIT.search(line):
            inner = [x for x in open_loops if x.depth <= depth]
            if inner and test["bound"].isdigit():
                inner[-1].trips = int(test["bound"])
    return found
