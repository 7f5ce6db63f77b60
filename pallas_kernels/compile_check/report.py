"""Report on one compiled program: its problems and its lines of the table."""

import dataclasses
from collections.abc import Iterator, Sequence

from pallas_kernels.compile_check.calls import Call, totals
from pallas_kernels.compile_check.compiler_text import Kernel
from pallas_kernels.compile_check.targets import TARGETS

COPY = 0.05
"""Temporaries of a TPU program that indicate a copied input, as a share of inputs and outputs (and over 1 MiB)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Result of compiling one workload for one target; sizes in bytes."""

    op: str
    kind: str
    shape: str
    target: str
    kernels: Sequence[Kernel] = ()
    notes: Sequence[str] = ()
    """Remarks of ptxas."""
    temporary: int = 0
    """Memory beyond inputs and outputs."""
    inputs_outputs: int = 0
    """Memory of inputs and outputs."""
    kept: float = 0.0
    """Memory of residuals."""
    faults: Sequence[str] = ()
    """Races, and invalid tensor maps."""
    calls: Sequence[Call] = ()
    work: Sequence[tuple[str, int, dict[str, int]]] = ()
    """Hopper kernels in order of assembly: name, registers, working instructions by kind."""
    floor: float = 0.0
    """`floor_microseconds` of the workload."""
    seconds: float = 0.0
    """Duration of tracing, lowering and compiling."""
    error: str | None = None

    @property
    def implementation(self) -> str:
        """Implementation of the program's kernels, or "xla"."""
        return "+".join(sorted({kernel.implementation for kernel in self.kernels})) or "xla"

    def problems(self) -> list[str]:
        """Reasons to fail."""
        if self.error is not None:
            return [f"does not compile: {self.error}"]
        found = [*(f"ptxas: {note}" for note in self.notes), *self.faults]
        found += [f"{x.name}: how often a loop runs is not known" for x in self.calls if x.unknown_trips]
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


LINE = "{:17} {:17} {:18} {:7} {:30} {:11} {:>5} {:>7} {:>9} {:>9} {:>9} {:>7}"
HEADER = LINE.format(
    "op", "kind", "shape", "target", "kernel", "taken", "regs", "spills", "smem KiB", "VMEM MiB", "temp MiB", "seconds"
)  # fmt: skip


def lines(report: Report) -> list[str]:
    """One line per kernel, with the program's temporaries and seconds on the first; counts; problems."""
    program = (report.op, report.kind, report.shape, report.target)
    last = ("", "") if report.error else (f"{report.temporary / 2**20:.1f}", f"{report.seconds:.1f}")
    table = []
    for x in report.kernels or [Kernel(name="-", implementation="-" if report.error else "xla")]:
        spills = None if x.spill_stores is None else max(x.spill_stores, x.spill_loads or 0)
        cells = [_number(x.registers), _number(spills), _number(x.shared_memory, 2**10), _number(x.vmem, 2**20)]
        table.append(LINE.format(*program, x.name, x.implementation, *cells, *last).rstrip())
        last = ("", "")
    return [*table, *_counts(report), *(f"  ! {problem}" for problem in report.problems())]


def _number(value: int | None, unit: int = 1) -> str:
    if value is None:
        return ""
    return str(value) if unit == 1 else f"{value / unit:.1f}"


def _counts(report: Report) -> Iterator[str]:
    """Launches, bytes and bound of the program, and limits of each kernel."""
    if not report.calls:
        return
    found = totals(report.calls)
    work = f"{found['launches']} launches, {found['bytes'] / 1e6:.0f} MB"
    yield f"    {work}, at least {found['bound']:.0f} us; floor {report.floor:.0f} us"
    for call in report.calls:
        if call.is_kernel:
            yield f"    {call.name}: {', '.join(_largest(call.limits, '{} {:.1f}'))} us"
        for x in call.hopper.loops if call.hopper else ():
            count, kinds = sum(x.instructions.values()), ", ".join(_largest(x.instructions, "{1:.0f} {0}", 5))
            waits = f"{x.rounds} rounds of wgmma, {x.barriers} barriers"
            yield f"        warpgroups {x.warpgroups} x {x.trips:.4g}: {count:.0f} instructions ({kinds}), {waits}"
        if (x := call.tpu) is not None:
            slots = ", ".join(_largest(x.units, "{} {:.0%}", 4))
            registers = f"fills {x.fills:.0%}, spills {x.spills:.0%}"
            yield f"        {x.bundles:.0f} bundles x {x.steps} steps; slots: {slots}; {registers}"


def _largest(values: dict[str, float], form: str, count: int | None = None) -> list[str]:
    """The largest values first, each with its name."""
    return [form.format(*x) for x in sorted(values.items(), key=lambda x: -x[1])[:count]]
