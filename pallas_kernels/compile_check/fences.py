"""Detects writes to shared memory without a fence before their readers.

Matmuls and TMA read shared memory through the asynchronous proxy, which sees threads' writes only after a fence
(`fence.proxy.async`, in machine code FENCE.VIEW.ASYNC). Two rules:

- in machine code, every path from a write (STS, STSM) to an arrival at an mbarrier or to a TMA store has a fence;
- in the lowered module, which unlike machine code shows the buffers of matmuls, no wgmma reads a buffer that its
  warpgroup has written since the last fence.
"""

from pallas_kernels.compile_check.module_text import Operation, walk
from pallas_kernels.compile_check.sass import Kernel


def unfenced_writes(kernel: Kernel) -> list[str]:
    """One line for each arrival and TMA store that a write reaches without a fence."""
    found = {}
    for place, x in enumerate(kernel.code):
        if x.base in ("STS", "STSM") and (reader := _first_reader(kernel, place + 1)) is not None:
            found.setdefault(reader, f"{kernel.code[reader].text} follows {x.text} without FENCE.VIEW.ASYNC")
    return list(found.values())


def _first_reader(kernel: Kernel, start: int) -> int | None:
    """First arrival or TMA store on any path from `start` without a fence."""
    waiting, seen = [start], set()
    while waiting:
        place = waiting.pop()
        while place < len(kernel.code) and place not in seen:
            seen.add(place)
            x = kernel.code[place]
            if x.operation.startswith("FENCE.VIEW.ASYNC"):
                break
            if x.base == "UTMASTG" or x.operation.startswith("SYNCS.ARRIVE"):
                return place
            target = kernel.target(place)
            if target is not None:
                waiting.append(target)
            if x.base in ("EXIT", "RET", "BRA") and not x.conditional:
                break
            place += 1
    return None


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
        self.made_by = {x.result: x for x in walk(program) if x.result}
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
