"""Tensor maps in a Mosaic GPU kernel's host code, checked against the CUDA driver's rules before a launch fails."""

import collections
import dataclasses
import itertools
import re

from pallas_kernels.compile_check.module_text import Operation

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
        rules = (
            (not 1 <= len(self.sizes) <= 5, f"rank {len(self.sizes)} is not in 1 .. 5"),
            (not all(1 <= n <= 2**32 for n in self.sizes), f"sizes {self.sizes} are not all in 1 .. 2^32"),
            (self.strides[-1] != 1, f"elements of a row are {self.strides[-1]} apart"),
            (
                any(n % 16 or n >= 2**40 for n in strides),
                f"strides of {strides} bytes are not multiples of 16 below 2^40",
            ),
            (not all(1 <= n <= 256 for n in self.box), f"box {self.box} is not in 1 .. 256"),
            (row % 16 != 0, f"a box's row of {row} bytes is no multiple of 16"),
            (
                self.swizzle > 16 and row > self.swizzle,
                f"a box's row of {row} bytes exceeds the swizzle {self.swizzle}",
            ),
        )
        return [text for broken, text in rules if broken]


def read_tensor_maps(host: list[Operation]) -> list[TensorMap]:
    """Tensor maps of the host function's operations, each for the array inspected last."""
    made_by = {operation.result: operation for operation in host if operation.result}
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
