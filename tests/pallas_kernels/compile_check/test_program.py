"""A program is its kernels by what they execute and XLA by what it moves; the committed table says what is worse."""

import math

import pytest

from pallas_kernels.compile_check import table
from pallas_kernels.compile_check.bundles import Schedule
from pallas_kernels.compile_check.calls import instructions, read_calls
from pallas_kernels.compile_check.compiler_text import Kernel
from pallas_kernels.compile_check.launch import Launch, ModuleLoop
from pallas_kernels.compile_check.sass import read_sass
from pallas_kernels.compile_check.targets import TARGETS
from tests.pallas_kernels.compile_check.snippets import LOOP

HLO = """\
HloModule jit_program, is_scheduled=true

%fused_add (p: bf16[4,8]) -> bf16[4,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  ROOT %add.0 = bf16[4,8]{1,0} add(%p, %p)
}

%body (t: (s32[], f32[64])) -> (s32[], f32[64]) {
  %t = (s32[], f32[64]{0}) parameter(0)
  %x.1 = f32[64]{0} get-tuple-element(%t), index=1
  ROOT %copy.9 = f32[64]{0} copy(%x.1)
}

ENTRY %main.5 (a.1: bf16[4,8], b.1: f32[64]) -> (bf16[4,8], f32[64]) {
  %a.1 = bf16[4,8]{1,0} parameter(0), sharding={replicated}
  %b.1 = f32[64]{0} parameter(1)
  %bitcast.1 = bf16[32]{0} bitcast(%a.1)
  %fusion.1 = bf16[4,8]{1,0} fusion(%a.1, %a.1), kind=kLoop, calls=%fused_add
  %mpmd_map.0 = (bf16[4,8]{1,0}, /*index=1*/f32[64]{0}) custom-call(%fusion.1, %b.1), custom_call_target="mosaic_gpu_v2"
  %mpmd_map.1 = f32[64]{0} get-tuple-element(%mpmd_map.0), index=1
  %copy-start.1 = (f32[64]{0:S(5)}, f32[64]{0}, u32[]) copy-start(%mpmd_map.1)
  %copy-done.1 = f32[64]{0:S(5)} copy-done(%copy-start.1)
  %copy-start.2 = (f32[64]{0:T(128)S(1)}, f32[64]{0:T(128)}, u32[]{:S(2)}) copy-start(%b.1)
  %copy-done.2 = f32[64]{0:T(128)S(1)} copy-done(%copy-start.2)
  %while.1 = (s32[], f32[64]{0}) while(%mpmd_map.1), body=%body, backend_config={"known_trip_count":{"n":"7"}}
  ROOT %tuple.1 = (bf16[4,8]{1,0}, f32[64]{0}) tuple(%fusion.1, %mpmd_map.1)
}
"""


@pytest.mark.full
def test_instructions_and_their_bytes():
    """Kills bodies of fusions counted for themselves, views that cost something, an operand read twice counted twice,
    both ends of a copy, what is fetched ahead counted before its use, and loops that run once."""
    found = {x.name: (x.bytes, x.times) for x in instructions(HLO)}
    assert found == {
        "fusion.1": (64 + 64, 1),
        "mpmd_map.0": (64 + 256 + 64 + 256, 1),
        "copy-start.1": (2 * 256, 1),
        "copy.9": (2 * 256, 7),
    }


KERNEL = Kernel(name="taylor", implementation="mosaic_gpu", registers=168, calls=("mpmd_map.0",), identity="h")


def launch(trips, **options):
    loop = ModuleLoop(warpgroup=0, index=0, trips=trips, wgmma={"64": 1, "16": 1})
    return Launch(grid=132, threads=128, shared_memory=0, loops=[loop], tensor_maps=[], **options)


def gpu_calls(trips=10_000.0, **options):
    launches = {"h": launch(trips, **options)}
    return read_calls(HLO, [KERNEL], TARGETS["h100"], code=read_sass(LOOP), launches=launches, schedules={})


def test_calls_of_a_gpu_program():
    """Kills a kernel without its machine code or its launch, XLA's work for nothing, and a bound that is no maximum."""
    calls = gpu_calls()
    assert [x.name for x in calls] == ["fusion", "taylor", "copy-start", "copy"]
    assert [x.is_kernel for x in calls] == [False, True, False, False]
    assert calls[1].limits["issue"] == pytest.approx(8 * 10_000 / 1980)  # one warp per scheduler
    assert calls[1].bound == calls[1].limits["matmuls"] > calls[1].limits["issue"]
    assert calls[3].bound == pytest.approx(7 * 512 / 3.35e6)
    without = read_calls(HLO, [KERNEL], TARGETS["h100"], code=read_sass(LOOP), launches={}, schedules={})
    assert not without[1].is_kernel


@pytest.mark.full
def test_bytes_of_a_gpu_kernel():
    """Kills operands that count whole where a kernel loads a part of them, or again where it loads them twice, and
    results that are left out."""
    whole, part, twice = (gpu_calls(1.0, loaded=loaded)[1] for loaded in (math.inf, 16.0, 1e9))
    assert whole.bytes == twice.bytes > part.bytes
    assert part.bytes == 16 + (64 + 256)
    assert part.limits["memory"] == pytest.approx(part.bytes / 3.35e6)


def schedule(**changed):
    options = {"bundles": 1500.0, "steps": 100, "units": {"MXU": 0.5, "XLU": 0.6}, "fills": 0.0, "spills": 0.25}
    return Schedule(**options | changed)


def tpu_call(**changed):
    kernel = Kernel(name="k", implementation="mosaic_tpu", calls=("mpmd_map.0",))
    schedules = {"mpmd_map.0": schedule(**changed)}
    return read_calls(HLO, [kernel], TARGETS["v5e"], code=[], launches={}, schedules=schedules)[1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("changed", "bound"),
    [({}, 100.0), ({"rows": 16000.0}, 2 * 1.6e6 * 128**2 / 197e6), ({"steps": 0}, 640 / 819e3)],
)
def test_calls_of_a_tpu_program(changed, bound):
    """Kills the clock, and matrix units that are faster than their peak."""
    assert tpu_call(**changed).bound == pytest.approx(bound)


def test_entries():
    """Kills launches and bytes of a loop's body counted once, and a bound without XLA's part."""
    calls = gpu_calls()
    entry = table.entry(calls, 10.0, "ptxas 1")
    assert (entry["launches"], entry["bytes"]) == (1 + 1 + 1 + 7, 128 + 640 + 512 + 7 * 512)
    assert entry["bound"] == pytest.approx(sum(x.bound for x in calls), abs=0.05)
    (kernel,) = entry["kernels"]
    assert kernel["instructions"] == 132 * 4 * 10_000 * 8
    assert kernel["loops"] == [{"trips": 10_000.0, "rounds": 1, "barriers": 1}]


@pytest.mark.full
@pytest.mark.parametrize(
    ("bundles", "compilers", "worse"),
    [(1570, "libtpu 1", 0), (1580, "libtpu 1", 1), (1720, "libtpu 2", 0), (1730, "libtpu 2", 1), (100, "libtpu 1", 0)],
)
def test_bundles_against_the_table(bundles, compilers, worse):
    """Kills a table that no kernel can fail, and another compiler's noise taken for a regression."""
    before = table.entry([tpu_call()], 10.0, "libtpu 1")
    after = table.entry([tpu_call(bundles=float(bundles))], 10.0, compilers)
    assert len(table.regressions(after, before)) == worse


def test_rounds_and_barriers_against_the_table():
    """Kills a loop that waits once more, or has a barrier more, unseen."""
    before = table.entry(gpu_calls(), 1.0, "ptxas 1")
    assert table.regressions(before, before) == []
    for what in ("rounds", "barriers"):
        fewer = [loop | {what: loop[what] - 1} for loop in before["kernels"][0]["loops"]]
        (text,) = table.regressions(before, before | {"kernels": [before["kernels"][0] | {"loops": fewer}]})
        assert text == f"taylor: {what} in the loops [1], [0] in the table"
    assert "lacks it" in table.regressions(before, before | {"kernels": []})[0]
    assert "no such program" in table.regressions(before, None)[0]
