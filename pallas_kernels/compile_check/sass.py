"""Parser of nvdisasm's text of Hopper kernels.

control codes  /*address*/  [@predicate] operation operands
0:-:2:-:04  /*1a40*/  @P0 LDSM.16.M88.4 R4, [R8+UR4] ;
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Container, Iterator

_INSTRUCTION = re.compile(r"\s*\S+:\d+\s+/\*[0-9a-f]{4,}\*/\s+(.*?)[ ;]*$")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\w+?)(?:_mosaic_gpu_kernel)?,")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`?\(?(\.L_x_\d+)\)?\s*$")
_CONDITIONAL = re.compile(r"@|BRA\S* !?U?P\d")
_PREDICATE = re.compile(r"^@!?U?P\w+\s+")


@dataclasses.dataclass(frozen=True)
class Instruction:
    text: str

    @property
    def operation(self) -> str:
        """Operation without predicate, e.g. `HGMMA.64x64x16.F32.BF16`."""
        return _PREDICATE.sub("", self.text).split()[0]

    @property
    def base(self) -> str:
        """First part of the operation, e.g. `HGMMA`."""
        return self.operation.split(".")[0]

    @property
    def columns(self) -> int:
        """Columns n of an HGMMA."""
        return int(self.operation.split(".")[1].split("x")[1])

    @property
    def conditional(self) -> bool:
        """Whether it is predicated, e.g. `@P0 EXIT` and `BRA P2, ...`."""
        return _CONDITIONAL.match(self.text) is not None


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel: instructions, and indices of labels."""

    name: str
    code: list[Instruction]
    labels: dict[str, int]

    def target(self, place: int) -> int | None:
        """Target of the branch at `place`; None for other instructions."""
        if self.code[place].base not in ("BRA", "BRX"):
            return None
        found = _TARGET.search(self.code[place].text)
        return self.labels.get(found[1]) if found else None

    @functools.cached_property
    def following(self) -> list[list[int]]:
        """Indices of the instructions that may run after each one: the target of a branch, the next one."""
        found = []
        for place, x in enumerate(self.code):
            ends = x.base in ("BRA", "EXIT", "RET") and not x.conditional
            after = (self.target(place), None if ends else place + 1)
            found.append([i for i in after if i is not None and i < len(self.code)])
        return found

    def walk(self, start: int, without: Container[int] = ()) -> Iterator[int]:
        """Indices of instructions on paths from `start` that contain none of `without`."""
        waiting, seen = [start], set()
        while waiting:
            place = waiting.pop()
            if place not in seen and place not in without and place < len(self.code):
                seen.add(place)
                yield place
                waiting += self.following[place]


def read_sass(text: str) -> list[Kernel]:
    """Kernels in text order."""
    kernels: list[Kernel] = []
    for line in text.splitlines():
        if section := _SECTION.match(line):
            kernels.append(Kernel(section[1], [], {}))
        elif not kernels:
            continue
        elif label := _LABEL.match(line):
            kernels[-1].labels[label[1]] = len(kernels[-1].code)
        elif found := _INSTRUCTION.match(line):
            kernels[-1].code.append(Instruction(found[1]))
    return kernels


@dataclasses.dataclass(frozen=True)
class SassLoop:
    """Loop of the instructions `first` to `last`, without rarely run code after its end (a barrier's retry)."""

    first: int
    last: int

    def __contains__(self, other: "SassLoop") -> bool:
        return self != other and self.first <= other.first and other.last <= self.last


def loops(kernel: Kernel) -> list[SassLoop]:
    """Loops in order: backward branches that no path reaches without their target."""
    found: dict[int, int] = {}
    reached = set(kernel.walk(0))
    for place in sorted(reached):
        target = kernel.target(place)
        if target is not None and target < place and place not in kernel.walk(0, without=(target,)):
            found[target] = max(place, found.get(target, 0))
    return [SassLoop(first, last) for first, last in sorted(found.items())]


def own(kernel: Kernel, loop: SassLoop, among: list[SassLoop]) -> list[Instruction]:
    """Instructions of a loop that are in no inner loop."""
    inner = [x for x in among if x in loop]
    places = range(loop.first, loop.last + 1)
    return [kernel.code[i] for i in places if not any(x.first <= i <= x.last for x in inner)]


def matmuls(code: list[Instruction]) -> dict[int, int]:
    """Columns n -> HGMMA instructions."""
    return dict(collections.Counter(x.columns for x in code if x.base == "HGMMA"))
