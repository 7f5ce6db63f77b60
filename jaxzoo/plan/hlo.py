"""Parser of HLO text: instructions of a compiled program, and how often each runs."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator

DTYPE_BITS = {
    "pred": 8, "token": 0, "opaque": 0, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128,
    "f8e4m3fn": 8, "f8e5m2": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8, "f8e4m3fnuz": 8, "f8e5m2fnuz": 8, "f8e3m4": 8,
}  # fmt: skip

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{[^}]*?(?:S\((\d+)\))?\})?")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|condition|body|\w+_computations?)=\{?(%[\w.\-]+(?:, %[\w.\-]+)*)")
_TRIPS = re.compile(r"known_trip_count\W+n\W+(\d+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_CONTROL = ("while", "call", "conditional", "async-start")


@dataclasses.dataclass(frozen=True)
class Array:
    """Shape of one array."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0
    """Memory space of a TPU: 0 for HBM, others on the chip."""

    @property
    def bytes(self) -> int:
        """Size without padding."""
        return math.prod(self.dims) * DTYPE_BITS.get(self.dtype, 0) // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    results: tuple[Array, ...]
    """All arrays of the result, tuples flattened."""
    operands: tuple[str, ...]
    literal: str
    """Text between the parentheses: the value of a constant."""
    attributes: str
    """Text after the operands."""
    is_root: bool
    """Whether its result is that of its computation (ROOT)."""

    @property
    def called(self) -> tuple[str, ...]:
        """Computations that it calls."""
        names = (name for found in _CALLED.findall(self.attributes) for name in found.split(", "))
        return tuple(name.lstrip("%") for name in names)

    @property
    def result_bytes(self) -> int:
        return sum(array.bytes for array in self.results)


class Computation(dict[str, Instruction]):
    """Instructions by name, in the order of the text."""

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        found = [each for each in self.values() if each.opcode == "parameter"]
        return tuple(sorted(found, key=lambda each: int(each.literal)))

    @property
    def root(self) -> Instruction:
        """The instruction that gives its result."""
        return next((each for each in self.values() if each.is_root), list(self.values())[-1])

    def operand_bytes(self, instruction: Instruction) -> int:
        return sum(self[name].result_bytes for name in instruction.operands if name in self)


class Hlo:
    """A compiled program.

    Attributes:
      computations: computations by name.
      times: how often each runs; the body of a loop of unknown length counts once, all branches of a conditional count.
      inner: names of computations inside of one instruction, such as a fusion.
      open_loops: number of loops of unknown length.
    """

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        entry = ""
        current = None
        for line in text.splitlines():
            head = None if line.startswith(" ") else _HEAD.match(line)
            if head is not None:
                current = self.computations[head[2]] = Computation()
                entry = head[2] if head[1] else entry
            elif current is not None and (instruction := _instruction(line)) is not None:
                current[instruction.name] = instruction
        if not entry:
            raise ValueError("the compiled program has no entry computation")
        self.times: dict[str, int] = collections.defaultdict(int)
        self.inner: set[str] = set()
        self.open_loops: int = 0
        waiting = [(entry, 1)]
        while waiting:
            name, times = waiting.pop()
            self.times[name] += times
            for instruction in self.computations[name].values():
                if instruction.opcode.endswith(("-done", "-update")):
                    continue  # the end of an asynchronous operation names the computation that its start has run
                trips = self._trips(instruction) if instruction.opcode == "while" else 1
                self.open_loops += trips is None
                for called in instruction.called:
                    if called in self.computations:
                        waiting.append((called, (trips or 1) * times))
                        if name in self.inner or instruction.opcode not in _CONTROL:
                            self.inner.add(called)

    def __iter__(self) -> Iterator[tuple[Computation, Instruction, int]]:
        """Every instruction that runs, its computation, and how often it runs."""
        return self._runs(self.times)

    def steps(self) -> Iterator[tuple[Computation, Instruction, int]]:
        """Like `__iter__`, without instructions that run inside of another one."""
        return self._runs([name for name in self.times if name not in self.inner])

    def _runs(self, names: Iterable[str]) -> Iterator[tuple[Computation, Instruction, int]]:
        for name in names:
            for instruction in self.computations[name].values():
                yield self.computations[name], instruction, self.times[name]

    def _trips(self, loop: Instruction) -> int | None:
        """Trip count of a loop: the compiler's, or (on TPUs) the bound in the condition of a `jax.lax.scan`."""
        told = _TRIPS.search(loop.attributes)
        condition = _CONDITION.search(loop.attributes)
        if told:
            return int(told[1])
        if condition is None or condition[1] not in self.computations:
            return None
        instructions = self.computations[condition[1]]
        compared = (
            instructions.get(name)
            for each in instructions.values()
            if each.opcode == "compare" and "direction=LT" in each.attributes
            for name in each.operands[1:]
        )
        bounds = [int(bound.literal) for bound in compared if bound is not None and bound.opcode == "constant"]
        return bounds[0] if len(bounds) == 1 else None


def _instruction(line: str) -> Instruction | None:
    named = _NAME.match(line)
    if named is None:
        return None
    rest = line[named.end() :]
    end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        return None
    close = _closing(rest, opcode.end() - 1)
    results = tuple(
        Array(dtype, tuple(int(n) for n in dims.split(",") if n), int(space or 0))
        for dtype, dims, space in _SHAPE.findall(rest[:end])
    )
    inside = rest[opcode.end() : close]
    return Instruction(
        name=named[1],
        opcode=opcode[1],
        results=results,
        operands=tuple(_OPERAND.findall(inside)),
        literal=inside,
        attributes=rest[close + 1 :],
        is_root=line.lstrip().startswith("ROOT "),
    )


def _closing(text: str, start: int = 0) -> int:
    """Index of the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    raise ValueError(f"unbalanced parentheses in the compiled program: {text[:80]}")
