"""Compiles workloads in one process each, and makes their reports."""

import importlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pallas_kernels import certificates
from pallas_kernels.compile_check.bundles import read_schedules
from pallas_kernels.compile_check.calls import Dumps, floor_microseconds, read_calls
from pallas_kernels.compile_check.compiler_text import read_program, read_ptxas, with_ptxas
from pallas_kernels.compile_check.fences import unfenced_writes
from pallas_kernels.compile_check.in_flight import touched_in_flight
from pallas_kernels.compile_check.launch import Launch
from pallas_kernels.compile_check.report import Report
from pallas_kernels.compile_check.sass import read_sass
from pallas_kernels.compile_check.targets import TARGETS, Target, nvdisasm
from pallas_kernels.compile_check.versions import work
from pallas_kernels.registry import OPS, load
from pallas_kernels.workload import Workload

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


def workload_groups(op: str) -> tuple[str, ...]:
    """Names of an op's groups."""
    return tuple(load(op, "workloads").GROUPS)


def check(
    ops: Sequence[str] = OPS,
    *,
    targets: Sequence[str],
    groups: Sequence[str] = ("headline",),
    kinds: Sequence[str] | None = None,
    implementation: str | None = None,
) -> Iterator[Report]:
    """Compiles the workloads of `groups` of every op, and yields their reports; kinds None: all."""
    for op in ops:
        for group in groups:
            module = load(op, "workloads").__name__
            yield from check_module(module, group, targets=targets, kinds=kinds, implementation=implementation)


def check_module(
    module: str,
    group: str,
    *,
    targets: Sequence[str],
    kinds: Sequence[str] | None = None,
    implementation: str | None = None,
) -> Iterator[Report]:
    """`check` for a group of an importable module with `GROUPS`."""
    groups: dict[str, tuple[Workload, ...]] = importlib.import_module(module).GROUPS
    for index, workload in enumerate(groups.get(group, ())):
        if kinds is None or workload.kind in kinds:
            for target in targets:
                said, result = _compile(module, group, str(index), target, implementation or "")
                names = {"op": workload.op, "kind": workload.kind, "shape": workload.name, "target": target}
                sizes = {"kept": workload.kept, "floor": floor_microseconds(workload, TARGETS[target])}
                yield Report(**names, **sizes, **_findings(said, result, TARGETS[target]))


def _compile(*arguments: str) -> tuple[str, dict[str, Any] | None]:
    """Output of the worker and the compilers, and the result; None if the worker failed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "result.pickle")
        command = [sys.executable, "-m", "pallas_kernels.compile_check.worker", *arguments, str(output)]
        run = subprocess.run(
            command, env=_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        said = run.stdout.decode(errors="replace")
        result = pickle.loads(output.read_bytes()) if run.returncode == 0 else None
        return said, result and result | {"schedules": read_schedules(Path(folder))}


def _environment(folder: str) -> dict[str, str]:
    """Environment in which the compilers write their reports; libtpu writes into `folder`."""
    dumps = " ".join(f"--{flag}={value}" for flag, value in (LIBTPU_DUMPS | {"xla_jf_dump_to": folder}).items())
    flags = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {dumps}".strip()
    disassembler = nvdisasm()
    root = {} if disassembler is None else {"CUDA_ROOT": str(disassembler.parent.parent)}  # where JAX looks for it
    return os.environ | ENVIRONMENT | {"LIBTPU_INIT_ARGS": flags} | root


def _findings(said: str, result: dict[str, Any] | None, target: Target) -> dict[str, Any]:
    """Fields of a report."""
    if result is None:
        errors = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", said, re.MULTILINE)
        return {"error": (errors or said.splitlines() or ["no output"])[-1][:500]}
    hlo, launches, schedules = (result.pop(name) for name in ("hlo", "launches", "schedules"))
    assembled, notes = read_ptxas(said)
    kernels = with_ptxas(read_program(hlo, {x: launch.shared_memory for x, launch in launches.items()}), assembled)
    dumps = Dumps(sass=said, launches=launches, schedules=schedules)
    calls = read_calls(hlo, kernels, dumps, target)
    code = zip(assembled, read_sass(said), strict=False)
    counted = [(kernel.name, kernel.registers, work(machine_code)) for kernel, machine_code in code]
    found = {"kernels": kernels, "notes": notes, "faults": _faults(said, launches), "calls": calls}
    return found | {"work": counted} | result


def _faults(said: str, launches: dict[str, Launch]) -> list[str]:
    """Faults that would fail or race on a device."""
    maps = {problem for launch in launches.values() for x in launch.tensor_maps for problem in x.problems()}
    matmuls = {fault for launch in launches.values() for fault in launch.faults}
    code = (
        f"{kernel.name}: {fault}"
        for kernel in read_sass(said)
        for fault in (*unfenced_writes(kernel), *touched_in_flight(kernel))
    )
    return [*(f"tensor map: {problem}" for problem in sorted(maps)), *sorted(matmuls), *dict.fromkeys(code)]
