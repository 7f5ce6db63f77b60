"""The predicted time of a whole program: its kernels by their schedules, what XLA does between them by its bytes.

Always a prediction. Launches of kernels, and what they wait for each other, are not in it.
"""

import dataclasses

from pallas_kernels.compile_check.compiler_text import Kernel
from pallas_kernels.compile_check.targets import Target
from pallas_kernels.schedule_model import hopper, sass
from pallas_kernels.schedule_model.bundles import Schedule
from pallas_kernels.schedule_model.launch import Launch
from pallas_kernels.schedule_model.program import Instruction, instructions
from pallas_kernels.workload import Workload

STEP = 0.35
"""Microseconds that a step of a TPU kernel's grid takes at least: its copies begin and are waited for.

JAX's guide to matmul on a v5e measures 0.36 in steps whose bundles take 0.15 (`calibrate.py`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One instruction of a program, with its predicted time."""

    name: str
    """Name of the kernel, or the opcode."""
    bytes: float
    """Bytes moved; of a Mosaic GPU kernel's operands at most what it loads, which may be less than all of them."""
    microseconds: float
    memory: float
    """Microseconds of its bytes at the memory's bandwidth."""
    matmuls: float = 0.0
    """Microseconds of a TPU kernel's matmuls, padding and all, at the peak of the matrix units."""
    times: int = 1
    gpu: hopper.Prediction | None = None
    tpu: Schedule | None = None

    @property
    def total(self) -> float:
        """Microseconds of all its runs."""
        return self.microseconds * self.times


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dumps:
    """Files that the compilers wrote next to the program."""

    sass: str = ""
    """nvdisasm's text of every Mosaic GPU kernel, in the order of assembly."""
    launches: dict[str, Launch] = dataclasses.field(default_factory=dict)
    """By the hash of the kernel, as the program prints it."""
    schedules: dict[str, Schedule] = dataclasses.field(default_factory=dict)
    """By the name of the instruction."""


def forecast(hlo: str, kernels: list[Kernel], dumps: Dumps, target: Target) -> list[Call]:
    """The program's calls in order; `kernels` as `compiler_text` reads them, with the registers that ptxas said."""
    waiting = sass.read_sass(dumps.sass)
    models: dict[str, tuple[Kernel, sass.Kernel | None]] = {}
    for kernel in kernels:
        code = next((x for x in waiting if x.name == kernel.name), None)
        if code is not None:
            waiting.remove(code)
        models |= dict.fromkeys(kernel.calls, (kernel, code))
    return [_call(x, *models.get(x.name, (None, None)), dumps, target) for x in instructions(hlo)]


def _call(x: Instruction, kernel: Kernel | None, code: sass.Kernel | None, dumps: Dumps, target: Target) -> Call:
    name = kernel.name if kernel is not None else x.opcode
    schedule = dumps.schedules.get(x.name) if kernel is not None else None
    launch = dumps.launches.get(kernel.identity or "") if kernel is not None else None
    moved = x.bytes if launch is None else x.bytes - x.read + min(x.read, launch.loaded)
    memory, gpu = moved / target.bandwidth * 1e6, None
    microseconds = memory
    if kernel is not None and code is not None and launch is not None:
        gpu = hopper.predict(code, launch, kernel.registers or 255, moved, target)
        microseconds = gpu.microseconds
    matmuls = 0.0
    if schedule is not None:
        matmuls = 2 * schedule.rows * schedule.steps * target.matrix_unit**2 / target.peak_flops * 1e6
        microseconds = max(memory, matmuls, schedule.steps * STEP, schedule.cycles / target.clock * 1e6)
    return Call(
        name=name, bytes=moved, microseconds=microseconds, memory=memory, matmuls=matmuls, times=x.times, gpu=gpu,
        tpu=schedule,
    )  # fmt: skip


def floor_microseconds(workload: Workload, target: Target) -> float:
    """Time of the compulsory bytes at the memory's bandwidth, or of the useful operations at the matmul units' peak."""
    return max(workload.bytes / target.bandwidth, workload.flops / target.peak_flops) * 1e6
