"""From the names of ops to reports, one process a program."""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pallas_kernels.compile_check.compiler_text import read_program, read_ptxas, with_ptxas
from pallas_kernels.compile_check.report import Report
from pallas_kernels.registry import OPS, load
from pallas_kernels.workload import Workload

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # plugins describe devices here, they look for none
    "JAX_ENABLE_COMPILATION_CACHE": "0",  # what comes from a cache is not reported
    "JAX_TRACEBACK_FILTERING": "off",  # so that an error is the last line
    "MOSAIC_GPU_DUMP_PTXAS": "1",
    "TPU_SKIP_MDS_QUERY": "1",  # no question to a cloud's metadata server
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # libtpu's lock is for devices; compilations may overlap
}


def workload_groups(op: str) -> tuple[str, ...]:
    """Names of the groups of an op."""
    return tuple(load(op, "workloads").GROUPS)


def check(
    ops: Sequence[str] = OPS,
    *,
    targets: Sequence[str],
    groups: Sequence[str] = ("headline",),
    kinds: Sequence[str] | None = None,
    implementation: str | None = None,
) -> Iterator[Report]:
    """Reports on the workloads of `groups` of every op that has them, as they are compiled; kinds None: all."""
    for op in ops:
        for group in groups:
            yield from check_module(
                load(op, "workloads").__name__, group, targets=targets, kinds=kinds, implementation=implementation
            )


def check_module(
    module: str,
    group: str,
    *,
    targets: Sequence[str],
    kinds: Sequence[str] | None = None,
    implementation: str | None = None,
) -> Iterator[Report]:
    """The same for a group of any importable module that has `GROUPS`."""
    groups: dict[str, tuple[Workload, ...]] = importlib.import_module(module).GROUPS
    for index, workload in enumerate(groups.get(group, ())):
        if kinds is None or workload.kind in kinds:
            for target in targets:
                said, result = _compile(module, group, str(index), target, implementation or "")
                names = {"op": workload.op, "kind": workload.kind, "shape": workload.name, "target": target}
                yield Report(**names, **_findings(said, result))


def _compile(*arguments: str) -> tuple[str, dict[str, Any] | None]:
    """What the worker and the compilers said, and what the worker wrote, None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "result.json")
        command = [sys.executable, "-m", "pallas_kernels.compile_check.worker", *arguments, str(output)]
        run = subprocess.run(
            command, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        said = run.stdout.decode(errors="replace")
        return said, json.loads(output.read_text()) if run.returncode == 0 else None


def _findings(said: str, result: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of a report behind its names."""
    if result is None:
        errors = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", said, re.MULTILINE)
        return {"error": (errors or said.splitlines() or ["no output"])[-1][:500]}
    assembled, notes = read_ptxas(said)
    kernels = with_ptxas(read_program(result.pop("hlo"), result.pop("shared_memory")), assembled)
    return {"kernels": kernels, "notes": notes, **result}
