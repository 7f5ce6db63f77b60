"""Hardware counters of our slowest kernels: `python -m benchmarks.kernel_counters --out counters.json`.

Takes the kernels that are furthest from their bound in the kept results of `pallas_kernels.benchmark`, one per op, and
reads their counters with NVIDIA's `ncu`, which runs this module again for each. Clocks stay as they are.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks/results")
SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "SchedulerStats", "WarpStateStats", "MemoryWorkloadAnalysis")
NCU = (
    *("ncu", "--csv", "--clock-control", "none", "--target-processes", "all", "--launch-count", "4"),
    *("--kernel-name", "regex:mosaic_gpu", *(word for name in SECTIONS for word in ("--section", name))),
)
COUNT = 2
"""Number of kernels."""
TIMEOUT = 90
"""Seconds for one kernel."""


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.kernel_counters", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("counters.json"), metavar="FILE", help="result")
    parser.add_argument("--call", nargs=3, metavar=("OP", "KIND", "NAME"), help="call one kernel three times, and stop")
    options = parser.parse_args()
    if options.call:
        call(*options.call)
        return 0
    kept = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*-nvidia-*.json"))]
    found: list[dict[str, Any]] = []
    for row in slowest([row for result in kept for row in result.get("rows", ())], COUNT):
        case = [row[key] for key in ("op", "kind", "name")]
        command = [*NCU, sys.executable, "-m", "benchmarks.kernel_counters", "--call", *case]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=True)
        print(done.stdout)
        found.append({"case": case, "share_of_floor": row["share_of_floor"], "counters": counters(done.stdout)})
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def slowest(rows: Iterable[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Returns the rows of Hopper kernels with the smallest share of their bound, one per op."""
    known: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["implementation"] == "mosaic_gpu" and row["status"] == "ok":
            before = known.get(row["op"], row)
            known[row["op"]] = min(before, row, key=lambda each: each["share_of_floor"])
    return sorted(known.values(), key=lambda row: row["share_of_floor"])[:count]


def counters(text: str) -> dict[str, dict[str, str]]:
    """Parses the output of `ncu --csv`: values with units by kernel and metric."""
    found: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        kernel = found.setdefault(f"{row['Kernel Name']} {row['ID']}", {})
        kernel[row["Metric Name"]] = f"{row['Metric Value']} {row['Metric Unit']}".strip()
    return found


def call(op: str, kind: str, name: str) -> None:
    import jax

    from pallas_kernels.registry import load

    groups = load(op, "workloads").GROUPS.values()
    workload = next(w for group in groups for w in group if (w.kind, w.name) == (kind, name))
    inputs = workload.inputs(0)
    function = jax.jit(workload.build("mosaic_gpu"))
    for _ in range(3):
        jax.block_until_ready(function(*inputs))


if __name__ == "__main__":
    raise SystemExit(main())
