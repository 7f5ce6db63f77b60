"""Parser of nvdisasm's text of Hopper kernels.

control codes  /*address*/  [@predicate] operation operands
0:-:2:-:04  /*1a40*/  @P0 LDSM.16.M88.4 R4, [R8+UR4] ;
"""

import collections
import dataclasses
import re

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
    """Loops in order: backward branches to an instruction that dominates the branch."""
    dominators = _dominators(kernel)
    found: dict[int, int] = {}
    for place in range(len(kernel.code)):
        target = kernel.target(place)
        if target is not None and target < place and place in dominators and target in dominators[place]:
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


def _dominators(kernel: Kernel) -> dict[int, set[int]]:
    """Last instruction of every reachable block -> first instructions of the blocks that dominate it."""
    starts = sorted({0, *kernel.labels.values(), *(i + 1 for i, x in enumerate(kernel.code) if x.base in _ENDS)})
    starts = [i for i in starts if i < len(kernel.code)]
    lasts = [following - 1 for following in [*starts[1:], len(kernel.code)]]
    block_of = {start: n for n, start in enumerate(starts)}
    before = collections.defaultdict(set)
    for n, last in enumerate(lasts):
        after = set()
        target = kernel.target(last)
        if target is not None and target < len(kernel.code):
            after.add(block_of[target])
        if (kernel.code[last].base not in _ENDS or kernel.code[last].conditional) and n + 1 < len(starts):
            after.add(n + 1)
        for m in after:
            before[m].add(n)
    found = {0: {0}}
    changed = True
    while changed:
        changed = False
        for n in range(1, len(starts)):
            known = [found[m] for m in before[n] if m in found]
            if not known:
                continue
            now = set.intersection(*known) | {n}
            if found.get(n) != now:
                found[n], changed = now, True
    return {lasts[n]: {starts[m] for m in blocks} for n, blocks in found.items()}


_ENDS = ("BRA", "BRX", "EXIT", "RET")
"""Instructions that end a block."""
