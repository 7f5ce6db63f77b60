"""Faults of kernels that would race on a device: unfenced writes, use of registers of a wgmma in flight.

Matmuls and TMA see a thread's writes to shared memory only after a fence (`fence.proxy.async`, FENCE.VIEW.ASYNC):

- in machine code, every path from a write (STS, STSM) to an arrival at an mbarrier or to a TMA store has a fence;
- in the lowered module, which shows the buffers of matmuls, no wgmma reads what its warpgroup wrote without a fence.

A wgmma owns its accumulators, and an A operand in registers, until `WARPGROUP.DEPBAR.LE gsb0, n`, which leaves at most
n groups of matmuls in flight; an HGMMA with `gsb0` ends a group. Until then only HGMMA may touch the accumulators.
"""

import re
from typing import NamedTuple

from pallas_kernels.compile_check.module_text import Operation, by_result
from pallas_kernels.compile_check.sass import Instruction, Kernel


def unfenced_writes(kernel: Kernel) -> list[str]:
    """One line for each arrival and TMA store that a write reaches without a fence."""
    operations = [x.operation for x in kernel.code]
    fences = {i for i, name in enumerate(operations) if name.startswith("FENCE.VIEW.ASYNC")}
    readers = {i for i, name in enumerate(operations) if name.startswith(("SYNCS.ARRIVE", "UTMASTG"))}
    found = {}
    for place, x in enumerate(kernel.code):
        if x.base in ("STS", "STSM"):
            reader = next((i for i in kernel.walk(place + 1, without=fences) if i in readers), None)
            if reader is not None:
                found.setdefault(reader, f"{kernel.code[reader].text} follows {x.text} without FENCE.VIEW.ASYNC")
    return list(found.values())


_POINTER = {"nvvm.stmatrix": 0, "llvm.store": 1, "memref.store": 1, "vector.store": 1}
"""Operations that write memory, and the index of their pointer operand."""


def unfenced_matmuls(program: list[Operation]) -> list[str]:
    """One line for each buffer that a wgmma reads after an unfenced write of the same warpgroup."""
    check = _Buffers(program)
    check.run(program, frozenset())
    return sorted(check.faults)


class _Buffers:
    """Shared-memory buffers of pointers and descriptors: the `memref.view`s from which they are computed."""

    def __init__(self, program: list[Operation]):
        self.made_by = by_result(program)
        self.known: dict[str, frozenset[str]] = {}
        self.faults: set[str] = set()

    def of(self, value: str) -> frozenset[str]:
        name = value.partition("#")[0]
        if name not in self.known:
            self.known[name] = frozenset()  # a value does not depend on itself
            x = self.made_by.get(name)
            if x is not None and x.name == "memref.view":
                self.known[name] = frozenset([name])
            elif x is not None and not x.name.startswith("scf.") and not x.name.endswith("load"):
                self.known[name] = frozenset().union(*map(self.of, x.operands))
        return self.known[name]

    def run(self, operations: list[Operation], written: frozenset[str]) -> frozenset[str]:
        """Follows operations; `written`: buffers with unfenced writes; returns those after the operations."""
        for x in operations:
            if x.name in _POINTER:
                written |= self.of(x.operands[_POINTER[x.name]])
            elif x.name == "nvvm.fence.proxy":
                written = frozenset()
            elif x.name == "llvm.inline_asm" and "wgmma.mma_async" in x.text:
                for buffer in frozenset().union(*map(self.of, x.operands)) & written:
                    kind = self.made_by[buffer].text.rpartition("-> memref<")[2].partition(",")[0]
                    self.faults.add(f"wgmma reads a buffer of {kind} after a write without a fence")
            for _ in range(2 if x.name == "scf.for" else bool(x.regions)):
                written = frozenset().union(*(self.run(region, written) for region in x.regions))
        return written


_ADDRESS = re.compile(r"\[[^\]]*\]|desc\[[^\]]*\]")
_PENDING = re.compile(r"gsb0, (0x\w+)")
MOST_GROUPS = 8
"""Maximum number of groups in flight that are followed."""
STORES = ("ST", "STS", "STSM", "STG", "STL", "RED", "SYNCS", "UTMASTG", "BAR", "BRA", "EXIT")
"""Operations whose first operand is no result."""


class Owned(NamedTuple):
    """Registers of matmuls in flight."""

    accumulators: frozenset[int]
    operands: frozenset[int]


def touched_in_flight(kernel: Kernel) -> list[str]:
    """One line for each instruction that touches registers of a wgmma in flight, on any path."""
    found: dict[int, str] = {}
    nothing = Owned(frozenset(), frozenset())
    waiting: list[tuple[int, tuple[Owned, ...], Owned]] = [(0, (), nothing)]
    seen = set()
    while waiting:
        state = place, groups, opened = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        x = kernel.code[place]
        if x.base == "HGMMA":
            opened = _joined(opened, _matmul(x))
            if "gsb0" in x.text:
                groups, opened = (*groups, opened)[-MOST_GROUPS:], nothing
        elif x.operation.startswith("WARPGROUP.DEPBAR") and (left := _PENDING.search(x.text)):
            groups = groups[max(0, len(groups) - int(left[1], 16)) :]
        elif groups or opened != nothing:
            owned = _joined(opened, *groups)
            read, written = _registers(x)
            if (read | written) & owned.accumulators or written & owned.operands:
                found[place] = f"{x.text} touches registers of a wgmma in flight"
        waiting += [(following, groups, opened) for following in kernel.following[place]]
    return [found[place] for place in sorted(found)]


def _joined(*parts: Owned) -> Owned:
    return Owned(*(frozenset().union(*sets) for sets in zip(*parts, strict=True)))


def _matmul(x: Instruction) -> Owned:
    """Registers of a matmul: 64 n float32 accumulators of 128 threads, 4 of a 64 x 16 operand of 16 bits."""
    result, *operands = _numbers(_ADDRESS.sub("", x.text))
    a = [first for first in operands if first != result]
    return Owned(_several([result], x.columns // 2), _several(a, 4))


def _registers(x: Instruction) -> tuple[frozenset[int], frozenset[int]]:
    """Registers read and written by an instruction."""
    width = _width(x)
    read, written = frozenset(), frozenset()
    for place, operand in enumerate(x.text.split(x.operation, 1)[1].split(",")):
        outside = _several(_numbers(_ADDRESS.sub("", operand)), width)
        for address in _ADDRESS.findall(operand):
            read |= _several(_numbers(address), 2 if ".64" in address else 1)
        if place == 0 and x.base not in STORES:
            written |= outside
        else:
            read |= outside
    return read, written


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(?<!\w)R(\d+)\b", text)]


def _width(x: Instruction) -> int:
    """Number of registers of one operand."""
    parts = x.operation.split(".")
    if x.base in ("LDSM", "STSM"):
        return int(parts[-1]) if parts[-1].isdigit() and len(parts[-1]) == 1 else 1
    if x.base.startswith(("LD", "ST", "ATOM")):
        return 4 if "128" in parts else 2 if "64" in parts else 1
    return 2 if x.base == "CS2R" and "32" not in parts else 1


def _several(firsts: list[int], count: int) -> frozenset[int]:
    """`count` registers from each of `firsts` on."""
    return frozenset(first + i for first in firsts for i in range(count))
