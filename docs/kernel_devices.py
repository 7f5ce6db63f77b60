"""Table of the kernels of every op on kinds of devices, from certificates and kept compiler reports."""

import json
from collections.abc import Iterator
from pathlib import Path

from pallas_kernels import certificates, pages
from pallas_kernels.compile_check import table as counts
from pallas_kernels.kernel_sources import LANGUAGES
from pallas_kernels.registry import OPS

DEVICES: dict[str, tuple[str, ...]] = {
    "CPU": (),
    "Ampere": ("8.0", "8.6"),
    "Ada": ("8.9",),
    "Hopper": ("9.0",),
    "Blackwell": ("10.0", "10.3", "12.0"),
    "TPU v5e": ("TPU v5 lite",),
    "TPU v6e": ("TPU v6 lite",),
    "ROCm": (),
}
"""Columns, and the architectures in them that may have kernels."""
TARGETS = {"h100": "9.0", "v5e": "TPU v5 lite", "v6e": "TPU v6 lite"}
"""Architectures of the targets of `compile_check`."""
TRITON = Path("benchmarks/results/triton_compile.json")
"""Kernels in Triton by op and compute capability for which they were compiled."""
VENDORS = {"sliding_window": {"Ampere": "cuDNN", "Ada": "cuDNN", "Blackwell": "cuDNN"}}
"""Kernels of vendors that run where there are none of ours."""


def table() -> str:
    """Rows of ops, columns of devices."""
    verified = frozenset[tuple[str, str]]().union(*map(certificates.verified, LANGUAGES))
    compiled = frozenset(_compiled())
    rows = [[op, *(_cell(op, name, verified, compiled) for name in DEVICES)] for op in OPS]
    return "\n".join(pages.table(("op", *DEVICES), rows))


def _cell(op: str, name: str, verified: frozenset, compiled: frozenset) -> str:
    """Status of the kernels of an op; by architecture if these differ."""
    found: dict[str, list[str]] = {}
    for target in DEVICES[name]:
        status = "XLA"
        if (target, op) in verified:
            status = "verified"
        elif (target, op) in compiled:
            status = "compiled"
        found.setdefault(status, []).append(target)
    if set(found) <= {"XLA"}:
        return VENDORS.get(op, {}).get(name, "XLA")
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{status} ({', '.join(targets)})" for status, targets in found.items())


def _compiled() -> Iterator[tuple[str, str]]:
    """Pairs (architecture, op) of kernels in the kept reports of compilers."""
    for name, entry in counts.read().items():
        op, _, _, target = name.split()
        if entry["kernels"]:
            yield TARGETS[target], op
    in_triton = json.loads(TRITON.read_text()) if TRITON.exists() else {}
    for op, by_capability in in_triton.items():
        yield from ((capability, op) for capability, calls in by_capability.items() if calls)
