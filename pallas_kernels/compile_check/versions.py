"""Compares kernels compiled under two versions of JAX: working instructions and registers.

Equal work makes no certificate: only a device run does.
"""

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pallas_kernels.compile_check.hopper import kind_of
from pallas_kernels.compile_check.sass import Kernel

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
        other = known.get(_key(entry))
        if other is None or not entry["work"]:
            continue
        here, there = entry["work"], other["work"]
        if [name for name, *_ in here] != [name for name, *_ in there]:
            lines.append(f"{_key(entry)}: other kernels")
            continue
        for (name, registers, ours), (_, others_registers, theirs) in zip(here, there, strict=True):
            count += 1
            changed = {kind for kind in ours | theirs if ours.get(kind) != theirs.get(kind)}
            found = [f"{kind} {ours.get(kind, 0)}, not {theirs.get(kind, 0)}" for kind in sorted(changed)]
            if abs(registers - others_registers) > REGISTERS:
                found.append(f"{registers} registers, not {others_registers}")
            if found:
                lines.append(f"{_key(entry)}, {name}: {'; '.join(found)}")
    return count, lines


def _key(entry: Mapping[str, Any]) -> str:
    return " ".join(str(entry[field]) for field in ("op", "kind", "shape", "target"))
