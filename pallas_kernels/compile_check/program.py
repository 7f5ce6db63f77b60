"""Parser of HLO text: instructions of a compiled program in order, and the bytes that each moves."""

import dataclasses
import math
import re

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) (?P<opcode>[\w\-]+)\((?P<operands>[^)]*)\)"
)
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_BODY = re.compile(r"\bbody=%([\w.\-]+)")
_CALLED = re.compile(r"\bto_apply=%([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_FREE = (
    "parameter", "constant", "bitcast", "get-tuple-element", "tuple", "after-all", "partition-id", "replica-id",
    "copy-done", "async-done", "slice-done", "opt-barrier",
)  # fmt: skip
"""Opcodes that move nothing, or are counted at their start."""
_VMEM = "S(1)"
"""Layout of an array in a TPU's VMEM."""
_SIZES = {"pred": 1, "bf16": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction that takes time."""

    name: str
    opcode: str
    text: str
    """Line of the HLO text."""
    read: float
    """Bytes of the operands, each counted once."""
    bytes: float
    """Bytes of operands and results."""
    times: int
    """Number of runs."""


def instructions(hlo: str) -> list[Instruction]:
    """Instructions of a program in order; loops with unknown trips count once."""
    computations: dict[str, list[re.Match]] = {}
    entry = current = ""
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            current = header[2]
            entry = current if header[1] else entry
            computations[current] = []
        elif current and (found := _INSTRUCTION.match(line)):
            computations[current].append(found)
    return _run(computations, entry, 1)


def _run(computations: dict[str, list[re.Match]], name: str, times: int) -> list[Instruction]:
    sizes: dict[str, float] = {}
    found = []
    for match in computations.get(name, []):
        sizes[match["name"]] = array_bytes(match["type"])
        line = match.string
        if match["opcode"] in ("while", "call") and (called := (_BODY.search(line) or _CALLED.search(line))):
            trips = _TRIPS.search(line)
            found += _run(computations, called[1], times * (int(trips[1]) if trips else 1))
        elif match["opcode"] not in _FREE and not _prefetches(match):
            read = sum(sizes.get(x, 0.0) for x in set(_OPERAND.findall(match["operands"])))
            moved = read * 2 if match["opcode"] == "copy-start" else read + sizes[match["name"]]
            found.append(
                Instruction(name=match["name"], opcode=match["opcode"], text=line, read=read, bytes=moved, times=times)
            )
    return found


def _prefetches(match: re.Match) -> bool:
    """Whether an array is prefetched to VMEM: its bytes count at its use."""
    return match["opcode"] == "copy-start" and _VMEM in match["type"].split("}")[0]


def array_bytes(types: str) -> float:
    """Bytes of the arrays in a type, e.g. `(bf16[4,8]{1,0}, f32[])`."""
    total = 0.0
    for element, dimensions in _ARRAY.findall(types):
        bits = re.search(r"\d+", element)
        size = _SIZES.get(element) or (int(bits[0]) / 8 if bits else 0)
        total += size * math.prod(int(n) for n in dimensions.split(",") if n)
    return total
