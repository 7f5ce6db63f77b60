"""What a lowered Mosaic GPU module says that machine code does not: grid, trip counts of loops, tensor maps.

The bound of a loop is often a sum of a block's place in the grid, which SASS holds in registers. The module still has
every loop as `scf.for` with bounds that are arithmetic on the numbers of blocks and threads, so they are computed
here: for each warpgroup, a sample of blocks and, of a loop with loops or branches in it, a sample of its iterations.
`hopper.py` finds the loops again in SASS by their wgmma instructions.
"""

import collections
import dataclasses
import re
from typing import Any

from pallas_kernels.schedule_model.fences import unfenced_matmuls
from pallas_kernels.schedule_model.module_text import Operation, read_module, walk
from pallas_kernels.schedule_model.tensor_map import TensorMap, read_tensor_maps

WARPGROUP = 128
"""Threads."""
Counts = dict[int, float]
"""Number of a loop -> how often it runs."""
_SAMPLE = 24
"""Blocks, or iterations of a loop, that stand for all."""
_WGMMA = re.compile(r"wgmma\.mma_async\S*?\.m64n(\d+)k")


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
"""In the order of the predicates of `arith.cmpi`: eq, ne, slt, sle, sgt, sge, ult, ule, ugt, uge."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleLoop:
    """A loop in the program of one warpgroup, and how often a block runs it."""

    warpgroup: int
    index: int
    """Of the loop in the module's text; the same for warpgroups that share its code."""
    trips: float
    """Iterations in a block, of all entries together: the mean over blocks; NaN where a bound is not arithmetic."""
    most: float
    """The most in one block."""
    wgmma: dict[str, int]
    """Columns n -> instructions of m64 n in the body, without those of inner loops."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel as its host code launches it."""

    grid: int
    """Blocks."""
    threads: int
    """A block."""
    shared_memory: int
    """Bytes a block."""
    loops: list[ModuleLoop]
    tensor_maps: list[TensorMap]
    faults: list[str] = dataclasses.field(default_factory=list)
    """Of `unfenced_matmuls`."""

    @classmethod
    def of_json(cls, entry: dict[str, Any]) -> "Launch":
        """From `dataclasses.asdict` of a launch."""
        loops = [ModuleLoop(**x) for x in entry["loops"]]
        return cls(**entry | {"loops": loops, "tensor_maps": [TensorMap(**x) for x in entry["tensor_maps"]]})


def read_launch(text: str) -> Launch:
    """The launch in a module, printed in generic form."""
    host = next(x for x in read_module(text) if x.name == "func.func" and any(x.regions)).regions[0]
    launch = next(x for x in host if x.name == "gpu.launch")
    values = _Values(host)
    tokens = 1 if ": (!gpu.async.token" in launch.text else 0
    numbers = [values.of(name) or 1 for name in launch.operands[tokens:]]
    grid, block = numbers[:3], numbers[3:6]
    return Launch(
        grid=grid[0] * grid[1] * grid[2],
        threads=block[0] * block[1] * block[2],
        shared_memory=numbers[-1],
        loops=_Program(host, launch).loops(grid, block),
        tensor_maps=read_tensor_maps(host),
        faults=unfenced_matmuls(host),
    )


class _Values:
    """Integers of a program for one block and warpgroup, computed when they are asked for; None: not known."""

    def __init__(self, operations: list[Operation], places: dict[str, list[int]] | None = None):
        self.made_by = {x.result: x for x in walk(operations) if x.result}
        self.places = places or {}
        self.known: dict[str, int | None] = {}

    def with_places(self, places: dict[str, list[int]]) -> "_Values":
        return self._copy({}, places)

    def with_counter(self, name: str, value: int) -> "_Values":
        """Inside a loop: what was computed stays, what was not known may depend on the counter."""
        known: dict[str, int | None] = {k: v for k, v in self.known.items() if v is not None}
        return self._copy(known | {name: value}, self.places)

    def _copy(self, known: dict[str, int | None], places: dict[str, list[int]]) -> "_Values":
        copy = _Values([], places)
        copy.made_by, copy.known = self.made_by, known
        return copy

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


class _Program:
    """The control flow of a launch: its loops, and the branches around them."""

    def __init__(self, host: list[Operation], launch: Operation):
        self.values = _Values(host)
        self.all = [x for x in walk(launch.regions[0]) if x.name == "scf.for"]
        self.index = {id(x): i for i, x in enumerate(self.all)}
        self.body = launch.regions[0]
        self.holds: dict[int, bool] = {}

    def loops(self, grid: list[int], block: list[int]) -> list[ModuleLoop]:
        found = []
        columns = [_wgmma(loop.regions[0]) for loop in self.all]
        for warpgroup in range(max(1, block[0] * block[1] * block[2] // WARPGROUP)):
            mean: Counts = collections.defaultdict(float)
            most: Counts = collections.defaultdict(float)
            for place, weight in sample(grid[0] * grid[1] * grid[2]):
                here = [place % grid[0], place // grid[0] % grid[1], place // (grid[0] * grid[1])]
                places = {
                    "block_id": here, "grid_dim": grid, "thread_id": [WARPGROUP * warpgroup, 0, 0], "block_dim": block,
                    "cluster_id": here, "cluster_block_id": [0, 0, 0],
                }  # fmt: skip
                trips: Counts = collections.defaultdict(float)
                self._run(self.body, self.values.with_places(places), 1.0, trips)
                for index, n in trips.items():
                    mean[index] += weight * n
                    most[index] = max(most[index], n)
            found += [
                ModuleLoop(warpgroup=warpgroup, index=i, trips=round(mean[i], 6), most=most[i], wgmma=dict(columns[i]))
                for i in sorted(mean)
            ]
        return found

    def _run(self, operations: list[Operation], values: _Values, times: float, trips: Counts) -> None:
        """Adds the iterations of every loop when `operations` run `times` times."""
        for operation in operations:
            if not self._has_loop(operation):
                continue
            if operation.name != "scf.for":
                for region in _taken(operation, values):
                    self._run(region, values, times, trips)
                continue
            low, high, step = (values.of(name) for name in operation.operands[:3])
            if low is None or high is None or not step:
                trips[self.index[id(operation)]] = float("nan")
                continue
            count = max(0, -(-(high - low) // step))
            trips[self.index[id(operation)]] += times * count
            if any(map(self._has_loop, operation.regions[0])):
                for i, weight in sample(count):
                    inside = values.with_counter(operation.arguments[0], low + i * step)
                    self._run(operation.regions[0], inside, times * count * weight, trips)

    def _has_loop(self, operation: Operation) -> bool:
        if id(operation) not in self.holds:
            inner = any(self._has_loop(x) for region in operation.regions for x in region)
            self.holds[id(operation)] = operation.name == "scf.for" or inner
        return self.holds[id(operation)]


def _taken(operation: Operation, values: _Values) -> list[list[Operation]]:
    """The branches that run; all of them where that is not known."""
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
    """(place, weight) of at most 24 of `count` places, the first and the last for themselves; weights add to 1."""
    if count <= _SAMPLE:
        return [(i, 1 / count) for i in range(count)]
    inner = _SAMPLE - 2
    places = [1 + (2 * i + 1) * (count - 2) // (2 * inner) for i in range(inner)]
    return [(0, 1 / count), *((place, (count - 2) / inner / count) for place in places), (count - 1, 1 / count)]


def _wgmma(operations: list[Operation]) -> collections.Counter:
    """wgmma instructions by their columns, without those of inner loops."""
    found: collections.Counter = collections.Counter()
    for operation in operations:
        if operation.name == "llvm.inline_asm":
            found.update(_WGMMA.findall(operation.text))
        elif operation.name != "scf.for":
            for region in operation.regions:
                found.update(_wgmma(region))
    return found
