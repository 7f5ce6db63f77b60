"""Grid, trip counts of loops and tensor maps of a lowered Mosaic GPU module.

Loops and loads are counted for each warpgroup and a sample of blocks (`control_flow.py`).
"""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Sequence

from pallas_kernels.compile_check.control_flow import Program, Values, sample
from pallas_kernels.compile_check.module_text import Operation, by_result, read_module
from pallas_kernels.compile_check.races import unfenced_matmuls

_ARRAY = re.compile(r"memref<(?P<sizes>(?:\d+x)+)[a-z]+(?P<bits>\d+)\w*(?:, strided<\[(?P<strides>[\d, ]+)\])?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorMap:
    """Arguments of one `cuTensorMapEncodeTiled`, outermost dimension first."""

    sizes: list[int]
    strides: list[int]
    """In elements; the last is 1."""
    box: list[int]
    swizzle: int
    """Bytes; 16 for none."""
    item_bytes: int

    def problems(self) -> list[str]:
        """Violated rules of the CUDA driver API (cuTensorMapEncodeTiled)."""
        row = self.box[-1] * self.item_bytes
        strides = [stride * self.item_bytes for stride in self.strides[:-1]]
        unaligned = any(n % 16 or n >= 2**40 for n in strides)
        broken = {
            f"rank {len(self.sizes)} is not in 1 .. 5": not 1 <= len(self.sizes) <= 5,
            f"sizes {self.sizes} are not all in 1 .. 2^32": not all(1 <= n <= 2**32 for n in self.sizes),
            f"elements of a row are {self.strides[-1]} apart": self.strides[-1] != 1,
            f"strides of {strides} bytes are not multiples of 16 below 2^40": unaligned,
            f"box {self.box} is not in 1 .. 256": not all(1 <= n <= 256 for n in self.box),
            f"a box's row of {row} bytes is no multiple of 16": row % 16 != 0,
            f"a box's row of {row} bytes exceeds the swizzle {self.swizzle}": row > self.swizzle > 16,
        }
        return [rule for rule, found in broken.items() if found]


def read_tensor_maps(host: list[Operation]) -> list[TensorMap]:
    """Tensor maps of the host function's operations, each for the array inspected last."""
    made_by = by_result(host)
    stored: dict[str, dict[int, int]] = collections.defaultdict(dict)
    constant = {name: n for name, x in made_by.items() if (n := x.integer("value")) is not None}
    array, found = None, []
    for operation in host:
        if operation.name == "memref.extract_strided_metadata":
            array = _ARRAY.search(operation.text)
        elif operation.name in ("memref.store", "llvm.store") and operation.operands[0] in constant:
            target, place = _element(operation, made_by, constant)
            stored[target][place] = constant[operation.operands[0]]
        elif "@mosaic_gpu_init_tma_desc" in operation.text and operation.operands and array is not None:
            box = operation.operands[7]
            while not made_by[box].name.endswith("alloca"):
                box = made_by[box].operands[0]
            sizes = [n for _, n in sorted(stored[box].items())]
            found.append(_tensor_map(array, sizes, constant[operation.operands[6]]))
    return found


def _element(store: Operation, made_by: dict, constant: dict[str, int]) -> tuple[str, int]:
    """Array and index of a store, through a memref or (before jax 0.12) a pointer."""
    if store.name == "memref.store":
        return store.operands[1], constant.get(store.operands[2], 0)
    pointer = made_by[store.operands[1]]
    place = re.search(r"rawConstantIndices = array<i32: (\d+)>", pointer.text)
    return (pointer.operands[0], int(place[1])) if place else (store.operands[1], 0)


def _tensor_map(array: re.Match, box: list[int], swizzle: int) -> TensorMap:
    sizes = [int(n) for n in array["sizes"].split("x")[:-1]]
    if array["strides"]:
        strides = [int(n) for n in array["strides"].split(",")]
    else:
        strides = list(itertools.accumulate([*sizes[:0:-1]], lambda a, b: a * b, initial=1))[::-1]
    return TensorMap(sizes=sizes, strides=strides, box=box, swizzle=swizzle, item_bytes=int(array["bits"]) // 8)


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
    faults: Sequence[str] = ()
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
