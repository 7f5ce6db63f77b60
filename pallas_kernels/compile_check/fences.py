"""Writes to shared memory that a matmul, TMA, or warps that wait for an mbarrier, may read before they are there.

Matmuls and TMA read shared memory through the asynchronous proxy, which sees what threads wrote only after a fence
(`fence.proxy.async`, in machine code FENCE.VIEW.ASYNC). Two rules:

- in machine code, every way from a write (STS, STSM) to an arrival at an mbarrier or to a TMA store passes a fence;
  what a matmul reads is in descriptors there, so
- in the lowered module, which still says of which buffer a pointer is, no wgmma reads a buffer that its warpgroup has
  written since the last fence.
"""

from pallas_kernels.compile_check.module_text import Operation, walk
from pallas_kernels.compile_check.sass import Kernel


def unfenced_writes(kernel: Kernel) -> list[str]:
    """A line for each arrival and TMA store that a write reaches without a fence."""
    found = {}
    for place, x in enumerate(kernel.code):
        if x.base in ("STS", "STSM") and (reader := _first_reader(kernel, place + 1)) is not None:
            found.setdefault(reader, f"{kernel.code[reader].text} follows {x.text} without FENCE.VIEW.ASYNC")
    return list(found.values())


def _first_reader(kernel: Kernel, start: int) -> int | None:
    """The first arrival or TMA store on any way from `start` that no fence is on."""
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
"""Operations that write memory, and which of their operands says where."""


def unfenced_matmuls(program: list[Operation]) -> list[str]:
    """A line for each buffer that a wgmma of `program` reads after a write of the same warpgroup without a fence."""
    check = _Buffers(program)
    check.run(program, frozenset())
    return sorted(check.faults)


class _Buffers:
    """Which buffers of shared memory a pointer or descriptor is of: the `memref.view`s that it is computed from."""

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
        """Follows a program from where `written` waits for a fence; returns what waits after it."""
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
