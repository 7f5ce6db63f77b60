"""The lowered module says how often loops run, and what TMA is asked for."""

import math
import re

import pytest

from pallas_kernels.compile_check.launch import TensorMap, read_launch, read_tensor_maps
from pallas_kernels.compile_check.module_text import read_module
from pallas_kernels.compile_check.races import unfenced_matmuls
from tests.pallas_kernels.compile_check.snippets import FENCED, FENCED_LINES, MODULE, TENSOR_MAP


def test_trips():
    """Kills a warpgroup that runs the loops of another, a block's number left out of a bound, values of regions side by
    side taken for each other, and inner loops without the outer one's counter."""
    launch = read_launch(MODULE)
    assert (launch.grid, launch.threads, launch.shared_memory) == (60, 256, 75808)
    first, outer, inner = launch.loops
    assert [x.warpgroup for x in launch.loops] == [0, 1, 1]
    assert (first.wgmma, outer.wgmma, inner.wgmma) == ({"64": 1}, {"16": 1}, {})
    # Warpgroup 0: block + 2 for block 0 to 29, twice. Warpgroup 1: 4, and in it 0 + 0 + 2 + 3.
    assert first.trips == pytest.approx(14.5 + 2, rel=0.02)
    assert (outer.trips, inner.trips) == (4, 5)


@pytest.mark.full
def test_a_bound_that_is_no_arithmetic():
    """Kills a loop whose bound comes from memory and that passes for one that does not run."""
    text = MODULE.replace('"stable_mosaic_gpu.arith.addi"(%10, %2) :', '"stable_mosaic_gpu.memref.load"(%10, %2) :')
    first, outer, _ = read_launch(text).loops
    assert math.isnan(first.trips)
    assert outer.trips == 4


def with_loads(*, expected='"stable_mosaic_gpu.arith.constant"() {value = 16 : i32}', used=""):
    """MODULE with two loads where its second warpgroup's counter is 2 or 3."""
    inner = '            "stable_mosaic_gpu.scf.for"(%14, %arg5, %3) ({\n'
    assert MODULE.count(inner) == 1
    arrive = '"stable_mosaic_gpu.llvm.inline_asm"(%14, %40) {asm_string = "mbarrier.arrive.expect_tx.b64 _, [$0], $1;"}'
    load = '%41 = "stable_mosaic_gpu.llvm.load"(%arg0) {ordering = 0 : i64} : (!llvm.ptr) -> vector<2xf32>'
    return MODULE.replace(inner, f"%40 = {expected} : () -> i32\n{arrive} : () -> ()\n{load}\n{used}\n{inner}")


@pytest.mark.full
def test_loads():
    """Kills a load that counts where its branch is not taken, once for all turns of a loop or all threads, and one
    whose result nobody uses."""
    assert read_launch(MODULE).loaded == 0
    runs = 60 * 128 * 2
    assert read_launch(with_loads()).loaded == pytest.approx(16 * runs)
    used = '%42 = "stable_mosaic_gpu.arith.addf"(%41, %41) : () -> f32'
    assert read_launch(with_loads(used=used)).loaded == pytest.approx((16 + 8) * runs)


def test_tensor_map():
    """Kills sizes without the array's own strides, and a box in the wrong order."""
    (function,) = read_module(TENSOR_MAP)
    (found,) = read_tensor_maps(function.regions[0])
    assert found == TensorMap(
        sizes=[4, 1025, 8, 16], strides=[131200, 128, 16, 1], box=[1, 8, 8, 16], swizzle=32, item_bytes=2
    )
    assert found.problems() == []
    pointers = TENSOR_MAP
    for place, name in enumerate(("%11", "%1", "%12", "%13")):  # as before jax 0.12
        pointers = re.sub(
            rf'"stable_mosaic_gpu.memref.store"\((%\d+), %10, {name}\).*',
            rf'%9{place} = "stable_mosaic_gpu.llvm.getelementptr"(%10) {{rawConstantIndices = array<i32: {place}>}}\n'
            rf'"stable_mosaic_gpu.llvm.store"(\1, %9{place}) {{ordering = 0 : i64}}',
            pointers,
        )
    assert "memref.store" not in pointers
    assert read_tensor_maps(read_module(pointers)[0].regions[0]) == [found]
    dense = TENSOR_MAP.replace(", strided<[131200, 128, 16, 1]>", "")
    assert read_tensor_maps(read_module(dense)[0].regions[0])[0].strides == [1025 * 8 * 16, 128, 16, 1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"sizes": [1, 4, 8, 16, 8, 16], "strides": [8, 8, 8, 8, 8, 1], "box": [1] * 5 + [16]}, "rank 6 is not in"),
        ({"sizes": [4, 0, 8, 16]}, "sizes"),
        ({"strides": [131200, 128, 12, 1]}, "strides of [262400, 256, 24] bytes"),
        ({"strides": [131200, 128, 16, 2]}, "elements of a row are 2 apart"),
        ({"box": [1, 512, 8, 16]}, "box [1, 512, 8, 16] is not"),
        ({"box": [1, 8, 8, 4]}, "a box's row of 8 bytes is no multiple"),
        ({"box": [1, 8, 8, 32]}, "a box's row of 64 bytes exceeds the swizzle 32"),
    ],
)
def test_rules_of_the_driver(changed, problem):
    """Kills each rule's absence."""
    good = {"sizes": [4, 1025, 8, 16], "strides": [131200, 128, 16, 1], "box": [1, 8, 8, 16], "swizzle": 32}
    (found,) = TensorMap(**good | changed, item_bytes=2).problems()
    assert found.startswith(problem)


WRITE, FENCE, MATMUL = FENCED_LINES
WRONG = ["wgmma reads a buffer of 64x64xbf16 after a write without a fence"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("body", "faults"),
    [
        (WRITE + FENCE + MATMUL, []),
        (WRITE + MATMUL + FENCE, WRONG),
        (MATMUL + WRITE, WRONG),  # in the next iteration
        (FENCE + MATMUL + WRITE, []),
        (MATMUL + WRITE + FENCE, []),
        (WRITE.replace("%11", "%12") + MATMUL, []),
        (WRITE.replace("%11", "%13") + MATMUL, []),  # a pointer that was loaded from the buffer
    ],
)
def test_matmuls_read_what_is_fenced(body, faults):
    """Kills a matmul before the fence of its operand, in one iteration or across two; one of another buffer refused."""
    assert unfenced_matmuls(read_module(FENCED.replace("BODY\n", body))) == faults
