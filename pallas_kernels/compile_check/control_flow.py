"""Control flow of a lowered Mosaic GPU module: trip counts of loops, and bytes loaded.

In the module every loop is an `scf.for` whose bounds are arithmetic on block and thread numbers. They are evaluated
here for one thread of a block; for loops that contain loops, branches or loads, for a sample of the iterations.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Mapping

from pallas_kernels.compile_check.module_text import Operation, by_result, walk

Counts = dict[int, float]
"""Index of a loop -> trip count."""
_SAMPLE = 24
"""Size of the sample of blocks or iterations."""
_EXPECT = re.compile(r"mbarrier\.arrive\.expect_tx")
_LOAD = re.compile(r"\(!llvm\.ptr\) -> vector<(\d+)x[a-z]+(\d+)>")


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_ARITHMETIC = {
    "addi": lambda a, b: a + b, "subi": lambda a, b: a - b, "muli": lambda a, b: a * b, "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b, "divsi": _quotient, "divui": lambda a, b: a // b, "floordivsi": lambda a, b: a // b,
    "ceildivsi": lambda a, b: -(-a // b), "ceildivui": lambda a, b: -(-a // b),
    "remsi": lambda a, b: a - b * _quotient(a, b), "remui": lambda a, b: a % b,
    "minsi": min, "minui": min, "maxsi": max, "maxui": max,
    "andi": lambda a, b: a & b, "ori": lambda a, b: a | b, "xori": lambda a, b: a ^ b,
    "shli": lambda a, b: a << b, "shrui": lambda a, b: a >> b, "shrsi": lambda a, b: a >> b,
}  # fmt: skip
_SAME = ("index_cast", "index_castui", "extui", "extsi", "trunci", "bitcast")
_COMPARE = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__lt__", "__le__", "__gt__", "__ge__")
"""Predicates of `arith.cmpi` in order: eq, ne, slt, sle, sgt, sge, ult, ule, ugt, uge."""


@dataclasses.dataclass(frozen=True)
class Values:
    """Integers of a program for one block and thread, evaluated lazily; None: unknown."""

    made_by: Mapping[str, Operation]
    places: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)
    """Numbers and counts of blocks and threads by axis."""
    known: dict[str, int | None] = dataclasses.field(default_factory=dict)

    def with_counter(self, name: str, value: int) -> "Values":
        """Values inside a loop: unknown values may depend on the counter."""
        known: dict[str, int | None] = {k: v for k, v in self.known.items() if v is not None}
        return Values(self.made_by, self.places, known | {name: value})

    def of(self, name: str) -> int | None:
        if name not in self.known:
            self.known[name] = self._compute(self.made_by.get(name))
        return self.known[name]

    def _compute(self, operation: Operation | None) -> int | None:
        if operation is None:
            return None
        dialect, _, name = operation.name.partition(".")
        if name in self.places:
            axis = re.search(r"dim<?\s*([xyz])", operation.text)
            return self.places[name]["xyz".index(axis[1])] if axis else None
        if name == "elect.sync":
            return 1
        if name == "shfl.sync":
            return self.of(operation.operands[1])
        if name in ("constant", "mlir.constant"):
            return operation.integer("value")
        operands = [self.of(x) for x in operation.operands] if dialect in ("arith", "llvm") else []
        if name == "select" and operands[0] is not None:
            return operands[1 if operands[0] else 2]
        if not operands or None in operands:
            return None
        first, *rest = (x for x in operands if x is not None)
        if name in _SAME:
            return first
        if name == "cmpi":
            return int(getattr(first, _COMPARE[operation.integer("predicate") or 0])(rest[0]))
        if name not in _ARITHMETIC or (("div" in name or "rem" in name) and rest[0] == 0):
            return None
        return _ARITHMETIC[name](first, rest[0])


@dataclasses.dataclass
class Tally:
    """Counts of one thread of a block."""

    trips: Counts = dataclasses.field(default_factory=lambda: collections.defaultdict(float))
    """NaN for unknown bounds."""
    loaded: float = 0.0
    """Bytes loaded by TMA and by the thread; infinite if unknown."""


class Program:
    """Control flow of a launch: loops, loads, and the branches around them."""

    def __init__(self, host: list[Operation], launch: Operation):
        self._made_by = by_result(host)
        self._body = launch.regions[0]
        self.loops = [x for x in walk(self._body) if x.name == "scf.for"]
        self._used = {name for x in walk(self._body) for name in x.operands}
        self._index = {id(x): i for i, x in enumerate(self.loops)}
        self._counted: dict[int, list[Operation]] = {}

    def run(self, thread: int, place: int, grid: list[int], block: list[int]) -> Tally:
        """Tally of one thread of a block."""
        here = [place % grid[0], place // grid[0] % grid[1], place // (grid[0] * grid[1])]
        places = {
            "block_id": here, "grid_dim": grid, "thread_id": [thread, 0, 0], "block_dim": block,
            "cluster_id": here, "cluster_block_id": [0, 0, 0],
        }  # fmt: skip
        tally = Tally()
        self._run(self._body, Values(self._made_by, places), 1.0, tally)
        return tally

    def _run(self, operations: list[Operation], values: Values, times: float, tally: Tally) -> None:
        """Adds the counts of `operations`, run `times` times."""
        for operation in self._relevant(operations):
            if operation.name == "scf.for":
                self._loop(operation, values, times, tally)
                continue
            if self._loads(operation):
                tally.loaded += times * _loaded(operation, values)
            for region in _taken(operation, values):
                self._run(region, values, times, tally)

    def _loop(self, operation: Operation, values: Values, times: float, tally: Tally) -> None:
        index, inside = self._index[id(operation)], self._relevant(operation.regions[0])
        low, high, step = (values.of(name) for name in operation.operands[:3])
        if low is None or high is None or not step:
            tally.trips[index] = math.nan
            tally.loaded += math.inf if inside else 0.0
            return
        count = max(0, -(-(high - low) // step))
        tally.trips[index] += times * count
        for i, weight in sample(count) if inside else ():
            at = values.with_counter(operation.arguments[0], low + i * step)
            self._run(operation.regions[0], at, times * count * weight, tally)

    def _relevant(self, operations: list[Operation]) -> list[Operation]:
        """Operations of a region that are counted or contain counted ones."""
        if id(operations) not in self._counted:
            self._counted[id(operations)] = [x for x in operations if self._counts(x)]
        return self._counted[id(operations)]

    def _counts(self, operation: Operation) -> bool:
        inner = any(self._relevant(region) for region in operation.regions)
        return inner or operation.name == "scf.for" or self._loads(operation)

    def _loads(self, operation: Operation) -> bool:
        """Whether it loads data; a store in Pallas also has an unused load."""
        if operation.name == "llvm.inline_asm":
            return _EXPECT.search(operation.text) is not None
        loads = operation.name == "llvm.load" and _LOAD.search(operation.text) is not None
        return loads and operation.result in self._used


def _loaded(operation: Operation, values: Values) -> float:
    """Bytes that a barrier expects from TMA, or of a thread's load."""
    if found := _LOAD.search(operation.text):
        return int(found[1]) * int(found[2]) / 8
    expected = values.of(operation.operands[1])
    return math.inf if expected is None else expected


def _taken(operation: Operation, values: Values) -> list[list[Operation]]:
    """Branches that run; all if unknown."""
    chosen = values.of(operation.operands[0]) if operation.operands else None
    if chosen is None or operation.name not in ("scf.if", "scf.index_switch"):
        return operation.regions
    if operation.name == "scf.if":
        return operation.regions[:1] if chosen else operation.regions[1:]
    cases = re.search(r"cases = array<i64(?:: ([\d, -]+))?>", operation.text)
    numbers = [int(n) for n in cases[1].split(",")] if cases and cases[1] else []
    which = 1 + numbers.index(chosen) if chosen in numbers else 0
    return operation.regions[which : which + 1]


def sample(count: int) -> list[tuple[int, float]]:
    """(index, weight) of at most 24 of `count` indices, including the first and the last; weights sum to 1."""
    if count <= _SAMPLE:
        return [(i, 1 / count) for i in range(count)]
    inner = _SAMPLE - 2
    places = [1 + (2 * i + 1) * (count - 2) // (2 * inner) for i in range(inner)]
    return [(0, 1 / count), *((place, (count - 2) / inner / count) for place in places), (count - 1, 1 / count)]
