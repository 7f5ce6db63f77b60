"""Bytes that the devices of a mesh send to each other in one run of a compiled program.

`wire` is the number of bytes that one device sends, by the formulas of ring algorithms for n devices and an operand of
B bytes: all-gather (n - 1) B, reduce-scatter and all-to-all (n - 1) / n B, all-reduce 2 (n - 1) / n B, others B.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from jaxzoo.plan.hlo import Hlo, Instruction
from jaxzoo.utils.array_typing import Int

_WIRE = {
    "all-gather": lambda n: n - 1,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: 1,
}

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? *(?:\{([^}]*)\})?")
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
_MESH_USE = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}")
_CHANNEL = re.compile(r"channel_id=(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """Collectives of one kind over the same axes of the mesh."""

    kind: str
    """Opcode, such as all-gather."""
    axes: tuple[str, ...]
    """Axes of the mesh along which its devices differ."""
    count: int
    """Number of calls per step."""
    operands: int
    """Bytes of their operands on one device."""
    wire: float
    """Bytes that one device sends, by the ring formulas."""


def read_traffic(hlo: Hlo, mesh: Mapping[str, int]) -> list[Traffic]:
    """Returns the collectives of the program of one device, the largest first.

    `mesh` has the sizes of the axes by name; the last axis varies fastest in the program's numbering of devices.
    """
    totals: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    begun: dict[str | None, set[int]] = {}  # starts by channel, for collectives that a TPU spreads over fusions
    for computation in hlo.computations.values():
        if any('"AsyncCollectiveStart"' in each.attributes for each in computation.values()):
            for instruction in computation.values():
                if instruction.opcode in _WIRE:
                    begun.setdefault(_channel(instruction), set()).add(id(computation))
    for computation, instruction, times in hlo:
        kind = instruction.opcode.removesuffix("-start")
        places = begun.get(_channel(instruction))
        if kind not in _WIRE or (places is not None and id(computation) not in places):
            continue
        groups = device_groups(instruction.attributes, math.prod(mesh.values()))
        axes = axes_of(groups, mesh)
        if not axes:
            continue
        size = computation.operand_bytes(instruction)
        n = groups.shape[1]
        total = totals.setdefault((kind, axes), [0, 0, 0.0])
        for i, value in enumerate((times, times * size, times * size * _WIRE[kind](n))):
            total[i] += value
    found = [
        Traffic(kind=kind, axes=axes, count=int(count), operands=int(size), wire=wire)
        for (kind, axes), (count, size, wire) in totals.items()
    ]
    return sorted(found, key=lambda traffic: -traffic.wire)


def device_groups(attributes: str, n_devices: int) -> Int[np.ndarray, "groups n"]:
    """Returns the devices of each group of a collective, or the pairs of a permutation."""
    if found := _MESH.search(attributes):
        return _mesh_groups(*found.groups())
    if found := _LISTED.search(attributes):
        rows = [[int(n) for n in row.split(",")] for row in re.findall(r"\{([\d,]+)\}", found[1])]
        return np.array(rows or [range(n_devices)])
    if found := _IOTA.search(attributes.partition("replica_groups=")[2]):
        return _iota(*found.groups())
    raise ValueError(f"unknown replica groups of a collective: {attributes[:120]}")


def axes_of(groups: Int[np.ndarray, "groups n"], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the axes of the mesh along which devices of one group differ."""
    places = np.stack(np.unravel_index(groups, tuple(mesh.values())))
    differ = np.any(places != places[:, :, :1], axis=(1, 2))
    return tuple(name for name, wide in zip(mesh, differ, strict=True) if wide)


def _mesh_groups(sizes: str, device_ids: str | None, used: str | None) -> Int[np.ndarray, "groups n"]:
    """Groups along axes of the compiler's own mesh, or along parts `:(before)size` of them."""
    mesh = [(name, int(size)) for name, size in _MESH_AXIS.findall(sizes)]
    uses = _MESH_USE.findall(used) if used is not None else [(name, "", "") for name, _ in mesh]
    wanted = {name: (int(before or 1), int(size or dict(mesh)[name])) for name, before, size in uses}
    dims = []
    along = []
    for name, size in mesh:
        before, inside = wanted.get(name, (size, 1))
        dims += [before, inside, size // (before * inside)]
        along += [False, name in wanted, False]
    n_devices = math.prod(dims)
    iota = _IOTA.search(device_ids or "")
    devices = _iota(*iota.groups()).reshape(dims) if iota else np.arange(n_devices).reshape(dims)
    order = sorted(range(len(dims)), key=lambda i: along[i])
    n = math.prod(size for size, use in zip(dims, along, strict=True) if use)
    return devices.transpose(order).reshape(-1, n)


def _iota(shape: str, reshape: str, transpose: str | None) -> Int[np.ndarray, "groups n"]:
    dims = _numbers(reshape)
    devices = np.arange(math.prod(dims)).reshape(dims)
    return devices.transpose(_numbers(transpose) if transpose else range(len(dims))).reshape(_numbers(shape))


def _numbers(text: str) -> Sequence[int]:
    return [int(n) for n in text.split(",")]


def _channel(instruction: Instruction) -> str | None:
    found = _CHANNEL.search(instruction.attributes)
    return found[1] if found else None
