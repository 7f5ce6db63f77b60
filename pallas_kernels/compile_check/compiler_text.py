"""Parsers of ptxas' report and of the kernels in a compiled program."""

import collections
import dataclasses
import re
from collections.abc import Iterable
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")

IMPLEMENTATIONS = {
    "mosaic_gpu": "mosaic_gpu",
    "mosaic_gpu_v2": "mosaic_gpu",
    "tpu_custom_call": "mosaic_tpu",
    "triton_kernel_call": "triton",
}
"""Custom calls of kernels, and their implementations."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """One compiled kernel. Sizes in bytes; None if the compiler does not report them."""

    name: str
    implementation: str
    registers: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    shared_memory: int | None = None
    vmem: int | None = None
    calls: tuple[str, ...] = ()
    """Names of the program's instructions that run it."""
    identity: str | None = None
    """Hash of a Mosaic GPU kernel, as printed in the program."""


_ENTRY = re.compile(r"Compiling entry function '(\w+?)(?:_mosaic_gpu_kernel)?' for")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_CODED = re.compile(r"ptxas \w+\s*: (\(C\d+\).*)")
_WARNING = re.compile(r"ptxas (?:warning|error)\s*: (?!\(C|Registers are spilled)(.*)")


def read_ptxas(text: str) -> tuple[list[Kernel], list[str]]:
    """Kernels in order of assembly, and remarks: warnings, and messages with a code (C7511: serial wgmma)."""
    kernels = []
    parts = _ENTRY.split(text)
    for name, report in zip(parts[1::2], parts[2::2], strict=True):
        spills, registers = _SPILLS.search(report), _REGISTERS.search(report)
        if spills and registers:
            kernels.append(
                Kernel(
                    name=name, implementation="mosaic_gpu", registers=int(registers[1]),
                    spill_stores=int(spills[1]), spill_loads=int(spills[2]),
                )
            )  # fmt: skip
    return kernels, [note.strip() for pattern in (_CODED, _WARNING) for note in pattern.findall(text)]


_TARGET = re.compile(r"custom_call_target=\"(\w+)\"")
_CALL = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_PATH = re.compile(r"op_name=\"([^\"]*)\"")
_HASH = re.compile(r"kernel_hash = \"([^\"]*)\"")
_VMEM = re.compile(r"\"used_scoped_memory_configs\":\[\{\"memory_space\":\"1\",\"offset\":\"\d+\",\"size\":\"(\d+)\"")


def read_program(hlo: str, shared_memory: dict[str, int]) -> list[Kernel]:
    """Pallas kernels of a compiled program in order, without duplicates."""
    kernels: dict[str, Kernel] = {}
    for line in hlo.splitlines():
        target, call = _TARGET.search(line), _CALL.match(line)
        if target is None or call is None or target[1] not in IMPLEMENTATIONS:
            continue
        path, vmem, found = _PATH.search(line), _VMEM.search(line), _HASH.search(line)
        name = path[1].split("/")[-2] if path and "/" in path[1] else call[1]
        implementation = "splash_tpu" if name.startswith("splash") else IMPLEMENTATIONS[target[1]]
        identity = found[1] if found else None
        kernel = kernels.get(identity or line) or Kernel(
            name=name, implementation=implementation, vmem=int(vmem[1]) if vmem else None,
            shared_memory=shared_memory.get(identity or ""), identity=identity,
        )  # fmt: skip
        kernels[identity or line] = dataclasses.replace(kernel, calls=(*kernel.calls, call[1]))
    return list(kernels.values())


def with_ptxas(kernels: list[Kernel], assembled: list[Kernel]) -> list[Kernel]:
    """Adds ptxas' numbers to the `kernels` of a program."""
    names = ("registers", "spill_stores", "spill_loads")
    return [
        kernel if report is None else dataclasses.replace(kernel, **{name: getattr(report, name) for name in names})
        for kernel, report in in_order(kernels, assembled)
    ]


def in_order(kernels: Iterable[A], others: Iterable[B]) -> list[tuple[A, B | None]]:
    """Pairs of kernels with equal names, in the same order; None: no other one is left."""
    waiting = collections.defaultdict(list)
    for x in others:
        waiting[_name(x)].append(x)
    return [(x, waiting[_name(x)].pop(0) if waiting[_name(x)] else None) for x in kernels]


def _name(kernel: Any) -> str:
    return kernel["name"] if isinstance(kernel, dict) else kernel.name
