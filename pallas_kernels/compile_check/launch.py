"""Grid, trip counts of loops and tensor maps of a lowered Mosaic GPU module.

Loops and loads are counted for each warpgroup and a sample of blocks (`control_flow.py`).
"""

import collections
import dataclasses
import math
import re

from pallas_kernels.compile_check.control_flow import Program, Values, sample
from pallas_kernels.compile_check.fences import unfenced_matmuls
from pallas_kernels.compile_check.module_text import Operation, by_result, read_module
from pallas_kernels.compile_check.tensor_map import TensorMap, read_tensor_maps

WARPGROUP = 128
"""Threads."""
_WGMMA = re.compile(r"wgmma\.mma_async\S*?\.m64n(\d+)k")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleLoop:
    """A loop of one warpgroup."""

    warpgroup: int
    index: int
    """Index in the module's text; equal for warpgroups that share the code."""
    trips: float
    """Total iterations per block, averaged over blocks; NaN if unknown."""
    wgmma: dict[str, int]
    """Columns n -> m64 n instructions in the body, without inner loops."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """Launch of a kernel."""

    grid: int
    """Blocks."""
    threads: int
    """Threads per block."""
    shared_memory: int
    """Bytes per block."""
    loops: list[ModuleLoop]
    tensor_maps: list[TensorMap]
    loaded: float = math.inf
    """Bytes loaded from global memory, counted per load."""
    faults: list[str] = dataclasses.field(default_factory=list)
    """Faults found by `unfenced_matmuls`."""


def read_launch(text: str) -> Launch:
    """Reads the launch of a module in generic form."""
    host = next(x for x in read_module(text) if x.name == "func.func" and any(x.regions)).regions[0]
    launch = next(x for x in host if x.name == "gpu.launch")
    values = Values(by_result(host))
    tokens = 1 if ": (!gpu.async.token" in launch.text else 0
    numbers = [values.of(name) or 1 for name in launch.operands[tokens:]]
    grid, block = numbers[:3], numbers[3:6]
    loops, loaded = _count(Program(host, launch), grid, block)
    return Launch(
        grid=grid[0] * grid[1] * grid[2],
        threads=block[0] * block[1] * block[2],
        shared_memory=numbers[-1],
        loops=loops,
        loaded=loaded,
        tensor_maps=read_tensor_maps(host),
        faults=unfenced_matmuls(host),
    )


def _count(program: Program, grid: list[int], block: list[int]) -> tuple[list[ModuleLoop], float]:
    """Loops of every warpgroup, and bytes loaded by all blocks."""
    found, loaded = [], 0.0
    columns = [_wgmma(loop.regions[0]) for loop in program.loops]
    blocks = grid[0] * grid[1] * grid[2]
    for warpgroup in range(max(1, block[0] * block[1] * block[2] // WARPGROUP)):
        mean: dict[int, float] = collections.defaultdict(float)
        for place, weight in sample(blocks):
            # The first thread may do extra work; the second stands for all others.
            first, second = (program.run(WARPGROUP * warpgroup + i, place, grid, block) for i in range(2))
            loaded += blocks * weight * (first.loaded + (WARPGROUP - 1) * second.loaded)
            for index, n in first.trips.items():
                mean[index] += weight * n
        found += [
            ModuleLoop(warpgroup=warpgroup, index=i, trips=round(mean[i], 6), wgmma=dict(columns[i]))
            for i in sorted(mean)
        ]
    return found, loaded


def _wgmma(operations: list[Operation]) -> collections.Counter:
    """wgmma instructions by columns, without inner loops."""
    found: collections.Counter = collections.Counter()
    for operation in operations:
        if operation.name == "llvm.inline_asm":
            found.update(_WGMMA.findall(operation.text))
        elif operation.name != "scf.for":
            for region in operation.regions:
                found.update(_wgmma(region))
    return found
