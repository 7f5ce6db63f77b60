"""Counts of the headline programs, committed as `counts.json`; comparisons with them, and with other versions of JAX.

`--save` rewrites the entries of the compiled programs. Equal work makes no certificate: only a device run does.
"""

import collections
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pallas_kernels.compile_check.calls import Call, totals
from pallas_kernels.compile_check.compiler_text import in_order
from pallas_kernels.compile_check.hopper import kind_of
from pallas_kernels.compile_check.sass import Kernel

FILE = Path(__file__).with_name("counts.json")
TOLERANCE, OTHER_COMPILERS = 1.05, 1.15
"""Allowed growth of bundles per step, with the table's compilers and with others."""

Table = dict[str, dict[str, Any]]


def key(*names: str) -> str:
    """Key of an entry: op, kind, shape, target."""
    return " ".join(names)


def entry(calls: Sequence[Call], floor: float, compilers: str) -> dict[str, Any]:
    """Entry of a program: launches, bytes moved, bound and floor in microseconds, counts of kernels."""
    found = totals(calls)
    return {
        "compilers": compilers,
        **found,
        "bound": round(found["bound"], 1),
        "floor": round(floor, 1),
        "kernels": [_kernel(call) for call in calls if call.is_kernel],
    }


def _kernel(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = {"name": call.name, "limits": {name: round(us, 1) for name, us in call.limits.items()}}
    if call.tpu is not None:
        x = call.tpu
        found |= {"bundles": round(x.bundles), "steps": x.steps, "fullest": x.fullest}
        found |= {"used": round(x.units[x.fullest], 2), "fills": round(x.fills, 2), "spills": round(x.spills, 2)}
    if call.hopper is not None:
        found["instructions"] = round(sum(call.hopper.executed.values()))
        found["loops"] = [
            {"trips": round(x.trips, 1), "rounds": x.rounds, "barriers": x.barriers} for x in call.hopper.loops
        ]
    return found


def read() -> Table:
    """The committed table."""
    return json.loads(FILE.read_text())


def save(entries: Table) -> None:
    """Replaces entries of the table, one line each, sorted by name."""
    table = (read() if FILE.exists() else {}) | entries
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(table.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def regressions(found: dict[str, Any], committed: dict[str, Any] | None) -> list[str]:
    """Counts that are worse in `found` than in the committed entry: bundles per step on TPUs, rounds and barriers.

    Kernels are matched in order by name; a missing entry or kernel is a regression.
    """
    if committed is None:
        return ["counts.json has no such program; compile_check --save"]
    tolerance = TOLERANCE if found["compilers"] == committed["compilers"] else OTHER_COMPILERS
    worse = []
    for kernel, before in in_order(found["kernels"], committed["kernels"]):
        if before is None:
            worse.append(f"{kernel['name']}: counts.json lacks it; compile_check --save")
            continue
        if "bundles" in kernel and kernel["bundles"] > tolerance * before["bundles"]:
            worse.append(f"{kernel['name']}: {kernel['bundles']} bundles per step, {before['bundles']} in the table")
        for what in ("rounds", "barriers"):
            now, then = (sorted(loop[what] for loop in x.get("loops", ())) for x in (kernel, before))
            if any(a > b for a, b in zip(now, then, strict=False)) or len(now) > len(then):
                worse.append(f"{kernel['name']}: {what} in the loops {now}, {then} in the table")
    return worse


WORK = re.compile(
    r"HGMMA|HMMA|MUFU|F(ADD|MUL|FMA|MNMX)|H(ADD2|MUL2|FMA2)|LD[GSL]|LDSM|ST[GSL]|STSM|UTMA|UBLK|SYNCS|BAR|MEMBAR|FENCE"
    r"|WARPGROUP|DEPBAR"
)
"""Instructions that compute, load, store, copy or wait; others compute addresses or branch."""
_CONSTANT = re.compile(r"HFMA2\S* \S+ -?RZ, -?RZ,")
"""A constant, 0 x 0 + c, which is not work."""
REGISTERS = 5
"""Allowed difference of register counts."""


def work(kernel: Kernel) -> dict[str, int]:
    """Working instructions in the code by kind."""
    kinds = (kind_of(x) for x in kernel.code if WORK.match(x.base) and not _CONSTANT.match(x.text))
    return dict(sorted(collections.Counter(kinds).items()))


def differences(programs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> tuple[int, list[str]]:
    """Number of kernels in the `--json` entries of both versions, and a line for each that differs."""
    known = {_key(entry): entry for entry in others}
    lines, count = [], 0
    for entry in programs:
        name = _key(entry)
        if name not in known or not entry["work"]:
            continue
        here, there = entry["work"], known[name]["work"]
        if [kernel for kernel, *_ in here] != [kernel for kernel, *_ in there]:
            lines.append(f"{name}: other kernels")
            continue
        for (kernel, registers, ours), (_, others_registers, theirs) in zip(here, there, strict=True):
            count += 1
            changed = {kind for kind in ours | theirs if ours.get(kind) != theirs.get(kind)}
            found = [f"{kind} {ours.get(kind, 0)}, not {theirs.get(kind, 0)}" for kind in sorted(changed)]
            if abs(registers - others_registers) > REGISTERS:
                found.append(f"{registers} registers, not {others_registers}")
            if found:
                lines.append(f"{name}, {kernel}: {'; '.join(found)}")
    return count, lines


def _key(entry: Mapping[str, Any]) -> str:
    return key(*(entry[name] for name in ("op", "kind", "shape", "target")))
