"""One compiled program: what is wrong with it, and its lines of the table."""

import dataclasses

from pallas_kernels.compile_check.compiler_text import Kernel
from pallas_kernels.compile_check.targets import TARGETS
from pallas_kernels.schedule_model import model_report
from pallas_kernels.schedule_model.forecast import Call

COPY = 0.05
"""Temporaries of a TPU program, as a share of inputs and outputs (and more than 1 MiB), that betray a copy of an input.

A kernel that takes arrays as they are keeps sums of rows at most, 1 % of them. A new layout of the queries alone is
10 % at 16 features and 64 values a head; padded from 16 to 128 lanes, 80 %."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Result of compiling one workload for one target; sizes in bytes."""

    op: str
    kind: str
    shape: str
    target: str
    kernels: list[Kernel] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    """Remarks of ptxas."""
    temporary: int = 0
    """Memory of the program beyond its inputs and outputs."""
    inputs_outputs: int = 0
    """Memory of its inputs and outputs."""
    kept: float = 0.0
    """Memory that its forward pass keeps for the backward pass."""
    faults: list[str] = dataclasses.field(default_factory=list)
    """Found in machine code and launches: unfenced writes, tensor maps that the driver refuses."""
    calls: list[Call] = dataclasses.field(default_factory=list)
    """Instructions that the program runs, with predicted times, where these were asked for."""
    floor: float = 0.0
    """Microseconds of the compulsory bytes at the memory's bandwidth, or of the useful operations at the peak."""
    seconds: float = 0.0
    """Tracing, lowering and compiling."""
    error: str | None = None

    @property
    def implementation(self) -> str:
        """Implementation that the program really runs: that of its kernels, or XLA."""
        return "+".join(sorted({kernel.implementation for kernel in self.kernels})) or "xla"

    def problems(self) -> list[str]:
        """Reasons to fail; temporaries as in `COPY`."""
        if self.error is not None:
            return [f"does not compile: {self.error}"]
        found = [f"ptxas: {note}" for note in self.notes] + self.faults
        for kernel in self.kernels:
            if kernel.implementation == "mosaic_gpu" and kernel.registers is None:
                found.append(f"{kernel.name}: ptxas reported nothing")
            limit = TARGETS[self.target].shared_memory
            if limit is not None and (kernel.shared_memory or 0) > limit:
                found.append(f"{kernel.name}: {kernel.shared_memory} bytes of shared memory, of {limit}")
            if kernel.spill_stores or kernel.spill_loads:
                found.append(f"{kernel.name}: spills {kernel.spill_stores} bytes, loads {kernel.spill_loads}")
        copied = self.temporary - self.kept
        if self.implementation == "mosaic_tpu" and copied > max(COPY * self.inputs_outputs, 2**20):
            share = copied / self.inputs_outputs
            found.append(f"copies: temporaries of {copied:.0f} bytes, {share:.0%} of inputs and outputs")
        return found


COLUMNS = (
    ("op", 17), ("kind", 17), ("shape", 18), ("target", 7), ("kernel", 30), ("taken", 11), ("regs", 5), ("spills", 7),
    ("smem KiB", 9), ("VMEM MiB", 9), ("temp MiB", 9), ("seconds", 7),
)  # fmt: skip


def header() -> str:
    """Names of the columns."""
    return _line([name for name, _ in COLUMNS])


def lines(report: Report) -> list[str]:
    """A line a kernel; temporaries and seconds are the program's and stand on its first line. Then its problems."""
    table = []
    for i, kernel in enumerate(report.kernels or [None]):
        first = i == 0 and report.error is None
        cells = [report.op, report.kind, report.shape, report.target]
        if kernel is None:
            cells += ["-", report.implementation if first else "-", "", "", "", ""]
        else:
            spills = None if kernel.spill_stores is None else max(kernel.spill_stores, kernel.spill_loads or 0)
            cells += [kernel.name, kernel.implementation, _number(kernel.registers), _number(spills)]
            cells += [_number(kernel.shared_memory, 2**10), _number(kernel.vmem, 2**20)]
        cells += [_number(report.temporary, 2**20), f"{report.seconds:.1f}"] if first else ["", ""]
        table.append(_line(cells))
    title = f"  {report.op} {report.kind} {report.shape} {report.target}"
    model = model_report.lines(title, report.calls, report.floor) if report.calls else []
    return [*table, *model, *(f"  ! {problem}" for problem in report.problems())]


def _line(cells: list[str]) -> str:
    padded = [
        text.ljust(width) if i < 6 else text.rjust(width)
        for i, (text, (_, width)) in enumerate(zip(cells, COLUMNS, strict=True))
    ]
    return " ".join(padded).rstrip()


def _number(value: int | None, unit: int = 1) -> str:
    if value is None:
        return ""
    return str(value) if unit == 1 else f"{value / unit:.1f}"
