"""Compiles workloads in a process each, which reports a kernel only when it compiles it first, and makes reports."""

import importlib
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from pallas_kernels import certificates
from pallas_kernels.child import Child, Outcome
from pallas_kernels.compile_check.bundles import Schedule, read_schedules
from pallas_kernels.compile_check.calls import floor_microseconds, read_calls
from pallas_kernels.compile_check.compiler_text import read_program, read_ptxas, with_ptxas
from pallas_kernels.compile_check.launch import Launch, read_launch
from pallas_kernels.compile_check.races import touched_in_flight, unfenced_writes
from pallas_kernels.compile_check.report import Report
from pallas_kernels.compile_check.sass import Kernel, read_sass
from pallas_kernels.compile_check.table import work
from pallas_kernels.compile_check.targets import TARGETS, Target, cuda_tool
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.programs import kernels
from pallas_kernels.registry import OPS, load
from pallas_kernels.workload import Workload

COMPILE_S = 1800.0
"""Time limit of compiling a program, in seconds."""
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # plugins only describe devices
    "JAX_ENABLE_COMPILATION_CACHE": "0",  # cached kernels are not reported
    "JAX_TRACEBACK_FILTERING": "off",  # so that an error is the last line
    certificates.SETTING: "all",
    "MOSAIC_GPU_DUMP_PTXAS": "1",
    "MOSAIC_GPU_DUMP_SASS_CTRL": "1",
    "TPU_SKIP_MDS_QUERY": "1",  # no request to a metadata server
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # libtpu's lock is for devices; compilations may overlap
}
LIBTPU_DUMPS = {
    "xla_jf_dump_llo_text": "true", "xla_jf_dump_llo_html": "false", "xla_jf_dump_llo_static_gaps": "false",
    "xla_jf_dump_llo_pass_label_regex": "final_.*", "xla_jf_emit_annotations": "true", "xla_jf_debug_level": "2",
}  # fmt: skip
"""Flags with which libtpu writes the final bundles of every kernel and the utilization of units."""


def check(ops: Sequence[str] = OPS, *, groups: Sequence[str] = ("headline",), **options: Any) -> Iterator[Report]:
    """Compiles the workloads of `groups` of every op, and yields their reports; `options` of `check_module`."""
    for op in ops:
        for group in groups:
            yield from check_module(load(op, "workloads").__name__, group, **options)


def check_module(
    module: str,
    group: str,
    *,
    targets: Sequence[str],
    kinds: Sequence[str] | None = None,
    implementation: str | None = None,
) -> Iterator[Report]:
    """`check` for a group of an importable module with `GROUPS`; kinds None: all."""
    groups: dict[str, tuple[Workload, ...]] = importlib.import_module(module).GROUPS
    for index, workload in enumerate(groups.get(group, ())):
        if kinds is None or workload.kind in kinds:
            for name in targets:
                call = {"module": module, "group": group, "index": index, "implementation": implementation}
                with tempfile.TemporaryDirectory() as folder:
                    child = Child(compile_workload, call | {"target": name}, COMPILE_S, _environment(folder))
                    found = _findings(child.result(), read_schedules(Path(folder)), TARGETS[name])
                names = {"op": workload.op, "kind": workload.kind, "shape": workload.name, "target": name}
                floor = floor_microseconds(workload, TARGETS[name])
                yield Report(**names, kept=workload.kept, floor=floor, **found)


def _environment(folder: str) -> dict[str, str]:
    """Environment in which the compilers write their reports; libtpu writes into `folder`."""
    dumps = " ".join(f"--{flag}={value}" for flag, value in (LIBTPU_DUMPS | {"xla_jf_dump_to": folder}).items())
    flags = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {dumps}".strip()
    disassembler = cuda_tool("nvdisasm")
    root = {} if disassembler is None else {"CUDA_ROOT": str(disassembler.parent.parent)}  # where JAX looks for it
    return ENVIRONMENT | {"LIBTPU_INIT_ARGS": flags} | root


def _findings(ended: Outcome, schedules: dict[str, Schedule], target: Target) -> dict[str, Any]:
    """Fields of a report."""
    if ended.value is None:
        return {"error": ended.message}
    hlo, modules = (ended.value.pop(name) for name in ("hlo", "modules"))
    launches = {key: read_launch(text) for key, text in modules.items()}
    assembled, notes = read_ptxas(ended.output)
    code = read_sass(ended.output)
    kernels = with_ptxas(read_program(hlo, {x: launch.shared_memory for x, launch in launches.items()}), assembled)
    calls = read_calls(hlo, kernels, target, code=code, launches=launches, schedules=schedules)
    counted = [(x.name, x.registers, work(instructions)) for x, instructions in zip(assembled, code, strict=False)]
    faults = _faults(code, list(launches.values()))
    return {"kernels": kernels, "notes": notes, "faults": faults, "calls": calls, "work": counted, **ended.value}


def _faults(code: list[Kernel], launches: list[Launch]) -> list[str]:
    """Faults that would fail or race on a device."""
    maps = {f"tensor map: {problem}" for launch in launches for x in launch.tensor_maps for problem in x.problems()}
    matmuls = {fault for launch in launches for fault in launch.faults}
    found = (f"{x.name}: {fault}" for x in code for fault in (*unfenced_writes(x), *touched_in_flight(x)))
    return [*sorted(maps), *sorted(matmuls), *dict.fromkeys(found)]


def compile_workload(module: str, group: str, index: int, target: str, implementation: str | None) -> dict[str, Any]:
    """HLO, texts of the Mosaic GPU modules by `Kernel.key`, memory and seconds of the compiled program.

    Sequences enter and leave as (b, t, heads * width): on a TPU, XLA would copy a parameter whose last axis is 16.
    """
    workload: Workload = importlib.import_module(module).GROUPS[group][index]
    inputs, run = workload.abstract_inputs(), workload.build(implementation)

    def merged(shape: tuple[int, ...]) -> tuple[int, ...]:
        whole = workload.kind == "step" or len(shape) < 4
        return shape if whole else (*shape[:2], math.prod(shape[2:]))

    device = TARGETS[target]
    sharding = SingleDeviceSharding(device.devices()[0])

    def program(*arrays):
        outputs = run(*jax.tree.map(lambda x, like: x.reshape(like.shape), arrays, inputs))
        return jax.tree.map(lambda x: x.reshape(merged(x.shape)), outputs)

    entries = jax.tree.map(lambda x: jax.ShapeDtypeStruct(merged(x.shape), x.dtype, sharding=sharding), inputs)
    start = time.perf_counter()
    with lowering_for(device.platform, multiprocessors=device.cores):
        lowered = jax.jit(program).trace(*entries).lower(lowering_platforms=(device.platform,))
    compiled = lowered.compile()
    seconds = time.perf_counter() - start
    memory: Any = compiled.memory_analysis()
    return {
        "hlo": compiled.as_text(),
        "modules": {kernel.key: kernel.text for kernel in kernels(lowered)},
        "temporary": memory.temp_size_in_bytes,
        "inputs_outputs": memory.argument_size_in_bytes + memory.output_size_in_bytes,
        "seconds": seconds,
    }
