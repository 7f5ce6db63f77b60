"""Detects writes to shared memory without a fence before their readers.

Matmuls and TMA read shared memory through the asynchronous proxy, which sees threads' writes only after a fence
(`fence.proxy.async`, in machine code FENCE.VIEW.ASYNC). Two rules:

- in machine code, every path from a write (STS, STSM) to an arrival at an mbarrier or to a TMA store has a fence;
- in the lowered module, which unlike machine code shows the buffers of matmuls, no wgmma reads a buffer that its
  warpgroup has written since the last fence.
"""

from pallas_kernels.compile_check.module_text import Operation, by_result
from pallas_kernels.compile_check.sass import Kernel


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
