"""Triton kernels compiled for absent NVIDIA GPUs: registers, spills and shared memory.

    python -m pallas_kernels.compile_check.triton [--ops OP ...] [--capabilities 8.0 ...] [--write]

Lowers the headline calls of the ops, with gradients, or the steps of `decode_step`, and assembles their kernels. Prints
JSON of numbers by op, compute capability, call and kernel; `--write` replaces these ops and capabilities in the kept
report.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

from pallas_kernels.compile_check.compiler_text import read_ptxas
from pallas_kernels.compile_check.targets import cuda_tool
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.registry import FUSED, OPS, load
from pallas_kernels.workload import Workload

CAPABILITIES = {"8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "10.3": 227, "12.0": 99}
"""Shared memory of a thread block in KB (CUDA C++ Programming Guide, table of compute capabilities)."""
ALL = (*OPS, *FUSED)
WHOLE = ("8.0", "9.0")
"""Compute capabilities for which headline calls of all widths are compiled, also with decays and states; for others it
is the first width of each group."""
REPORT = Path(__file__).parents[2] / "benchmarks/results/triton_compile.json"
DUMP = "JAX_TRITON_DUMP_DIR"
"""Environment variable that jax-triton reads on import: where it keeps the PTX of kernels."""


def workloads(op: str, capability: str) -> list[Workload]:
    """Headline calls with gradients, and steps, whether Triton kernels serve them or not."""
    groups, whole = load(op, "workloads").GROUPS, capability in WHOLE
    names = ("headline", "channel", *["decay"] * whole)
    found = ([x for x in groups.get(name, ()) if x.kind == "forward_backward"] for name in names)
    calls = [x for group in found for x in (group if whole else group[:1])]
    return calls + [x for x in groups["headline"] if x.kind == "step"]


def compiled(workload: Workload, capability: str) -> dict[str, dict[str, int]]:
    """Numbers of the kernels of a call, in the order of lowering; {} if no Triton kernel serves it.

    Kernels that an earlier call of the process has are left out, because jax-triton keeps what it has compiled.
    """
    folder = Path(os.environ[DUMP])
    before = set(folder.iterdir())
    try:
        with lowering_for("cuda", capability=capability):
            traced = jax.jit(workload.build("triton")).trace(*workload.abstract_inputs())
            traced.lower(lowering_platforms=("cuda",))
    except (NotImplementedError, ValueError) as error:
        print(f"{workload.op} {workload.name}: {error}", file=sys.stderr)
        return {}
    made = sorted(set(folder.iterdir()) - before, key=lambda x: x.stat().st_mtime_ns)
    found: dict[str, dict[str, int]] = {}
    for one in made:
        (ptx,) = one.glob("*.ptx")
        number = sum(name.split()[0] == ptx.stem for name in found) + 1
        found[ptx.stem if number == 1 else f"{ptx.stem} {number}"] = _assembled(ptx)
    return found


def _assembled(ptx: Path) -> dict[str, int]:
    """Numbers of one kernel."""
    target = next(line.split()[1] for line in ptx.read_text().splitlines() if line.startswith(".target"))
    command = [str(cuda_tool("ptxas")), "-v", f"-arch={target.rstrip(',')}", str(ptx), "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True)
    kernels, _ = read_ptxas(done.stdout + done.stderr)
    if done.returncode or len(kernels) != 1:
        raise RuntimeError(f"ptxas refuses {ptx.stem} for {target}: {done.stderr}")
    spills = (kernels[0].spill_stores or 0) + (kernels[0].spill_loads or 0)
    shared = int(ptx.with_suffix(".compile_info").read_text().rsplit(":", 1)[1])
    return {"registers": kernels[0].registers or 0, "spills": spills, "shared_memory": shared}


def measured(ops: list[str], capabilities: list[str]) -> dict[str, Any]:
    """Numbers by op, compute capability, call and kernel."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[DUMP] = folder
        for op in ops:
            for capability in capabilities:
                calls = {x.name: compiled(x, capability) for x in workloads(op, capability)}
                if any(calls.values()):
                    found.setdefault(op, {})[capability] = {name: x for name, x in calls.items() if x}
    return found


def merged(found: dict[str, Any]) -> dict[str, Any]:
    """The kept report with the entries of `found` replaced."""
    kept = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    return {op: kept.get(op, {}) | found.get(op, {}) for op in ALL if op in kept or op in found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--capabilities", nargs="+", choices=CAPABILITIES, default=CAPABILITIES)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    numbers = measured(list(options.ops), list(options.capabilities))
    if options.write:
        REPORT.write_text(json.dumps(merged(numbers), indent=1) + "\n")
    print(json.dumps(numbers))
