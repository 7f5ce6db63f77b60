"""The committed predictions, `predicted.json`, and what has become worse since.

    python -m pallas_kernels.compile_check --model --save      rewrites the entries of the programs that it compiles

The numbers depend on the compilers, so an entry names those that made it.
"""

import json
import math
from pathlib import Path
from typing import Any

from pallas_kernels.compile_check.targets import Target
from pallas_kernels.schedule_model.forecast import Call

FILE = Path(__file__).with_name("predicted.json")
TOLERANCE, OTHER_COMPILERS = 1.05, 1.15
"""How much more than the table is allowed: bundles per step, with the table's compilers and with others."""

Table = dict[str, dict[str, Any]]


def key(*names: str) -> str:
    """Key of an entry: op, kind, shape, target."""
    return " ".join(names)


def entry(calls: list[Call], floor: float, compilers: str) -> dict[str, Any]:
    """Entry of a program; times in microseconds."""
    total = sum(call.total for call in calls)
    kernels = [_kernel(call) for call in calls if call.gpu is not None or call.tpu is not None]
    rest = sum(call.total for call in calls if call.gpu is None and call.tpu is None)
    return {
        "compilers": compilers,
        "microseconds": round(total, 1),
        "share_of_floor": round(floor / total, 3) if total else 0.0,
        "xla_microseconds": round(rest, 1),
        "kernels": kernels,
    }


def _kernel(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = {"name": call.name, "microseconds": round(call.total, 1)}
    if call.tpu is not None:
        x = call.tpu
        found |= {"bundles": round(x.bundles), "steps": x.steps, "fullest": x.fullest}
        found |= {"used": round(x.units[x.fullest], 2), "fills": round(x.fills, 2), "spills": round(x.spills, 2)}
    if call.gpu is not None:
        found |= {"blocks": call.gpu.blocks, "resident": call.gpu.resident, "waves": call.gpu.waves}
        found |= {"schedule": round(call.gpu.schedule, 1), "tensor": round(call.gpu.tensor, 2)}
        found["roles"] = [
            {"cycles": round(x.cycles), "trips": round(x.trips, 1), "rounds": x.rounds, "barriers": x.barriers}
            for x in call.gpu.roles
        ]
    return found


def totals(calls: list[Call]) -> dict[str, float]:
    """A program in three numbers: instructions that are launched, bytes moved, microseconds."""
    return {
        "launches": sum(call.times for call in calls),
        "bytes": sum(call.bytes * call.times for call in calls),
        "microseconds": round(sum(call.total for call in calls), 1),
    }


def at_size(entry: dict[str, Any], target: Target, *, rows: float, length: float) -> float:
    """Microseconds of a program with `rows` times as many sequences, each `length` times as long, as an entry's.

    Holds for kernels that take sequences in parallel and tokens in order, by a program that depends on neither number.
    A step of a TPU's grid takes the same bundles, and there are as many more steps but for the two that fill and drain
    its pipeline. A block of a Hopper kernel takes `length` times as long, and there are `rows` times as many. What is
    held by the memory, and XLA between kernels, takes its bytes.
    """
    total = entry["xla_microseconds"] * rows * length
    for kernel in entry["kernels"]:
        if "steps" in kernel:
            steps = (kernel["steps"] - 2) * rows * length + 2
            total += kernel["microseconds"] * steps / kernel["steps"]
        else:
            resident = kernel["resident"] * target.cores
            waves = math.ceil(kernel["blocks"] * rows / resident) / kernel["waves"]
            held = kernel["microseconds"] > kernel["schedule"] + 0.1  # both rounded
            total += max(kernel["schedule"] * waves * length, kernel["microseconds"] * rows * length * held)
    return total


def read(file: Path | None = None) -> Table:
    """The table in a file; None: the committed one."""
    return json.loads((file or FILE).read_text())


def save(entries: Table, file: Path | None = None) -> None:
    """Writes `entries` over those of the same programs, in the order of their names."""
    file = file or FILE
    table = (read(file) if file.exists() else {}) | entries
    file.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")


def regressions(found: dict[str, Any], committed: dict[str, Any] | None) -> list[str]:
    """Numbers that are worse in `found` than in the committed entry: bundles per step on TPUs, rounds and barriers.

    Kernels are compared in order, by name; an entry or a kernel that the table lacks has to be saved first.
    """
    if committed is None:
        return ["the table of predictions has no such program; compile_check --model --save"]
    same = found["compilers"] == committed["compilers"]
    tolerance = TOLERANCE if same else OTHER_COMPILERS
    waiting = list(committed["kernels"])
    worse = []
    for kernel in found["kernels"]:
        before = next((x for x in waiting if x["name"] == kernel["name"]), None)
        if before is None:
            worse.append(f"{kernel['name']}: the table of predictions lacks it; compile_check --model --save")
            continue
        waiting.remove(before)
        if "bundles" in kernel and kernel["bundles"] > tolerance * before["bundles"]:
            worse.append(f"{kernel['name']}: {kernel['bundles']} bundles per step, {before['bundles']} in the table")
        for what in ("rounds", "barriers"):
            now, then = (sorted(role[what] for role in x.get("roles", ())) for x in (kernel, before))
            if any(a > b for a, b in zip(now, then, strict=False)) or len(now) > len(then):
                worse.append(f"{kernel['name']}: {what} in the loops {now}, {then} in the table")
    return worse
