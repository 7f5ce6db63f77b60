"""A program is the sum of its kernels' schedules and of what XLA moves; the committed table says what is worse."""

import math

import pytest

from pallas_kernels.compile_check.compiler_text import Kernel
from pallas_kernels.compile_check.targets import TARGETS
from pallas_kernels.schedule_model import model_report, table
from pallas_kernels.schedule_model.bundles import Schedule
from pallas_kernels.schedule_model.forecast import Call, Dumps, forecast
from pallas_kernels.schedule_model.launch import Launch, ModuleLoop
from pallas_kernels.schedule_model.program import array_bytes, instructions
from tests.pallas_kernels.schedule_model.snippets import LOOP

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


@pytest.mark.full
@pytest.mark.parametrize(
    ("types", "size"), [("bf16[4,8]{1,0:T(8,128)}", 64), ("(f32[], pred[3], u4[16])", 4 + 3 + 8), ("token[]", 0)]
)
def test_array_bytes(types, size):
    """Kills sizes of other types."""
    assert array_bytes(types) == size


KERNEL = Kernel(name="taylor", implementation="mosaic_gpu", registers=168, calls=("mpmd_map.0",), identity="h")


def launch(trips, **options):
    loop = ModuleLoop(warpgroup=0, index=0, trips=trips, most=trips, wgmma={"64": 1, "16": 1})
    return Launch(grid=132, threads=128, shared_memory=0, loops=[loop], tensor_maps=[], **options)


def test_forecast_of_a_gpu_program():
    """Kills a kernel without its machine code or its launch, and XLA's work for nothing."""
    dumps = Dumps(sass=LOOP, launches={"h": launch(1000.0)})
    calls = forecast(HLO, [KERNEL], dumps, TARGETS["h100"])
    assert [x.name for x in calls] == ["fusion", "taylor", "copy-start", "copy"]
    assert [x.gpu is not None for x in calls] == [False, True, False, False]
    assert calls[1].microseconds > 50
    assert calls[3].total == pytest.approx(7 * 512 / 3.35e6)
    assert forecast(HLO, [KERNEL], Dumps(sass=LOOP), TARGETS["h100"])[1].gpu is None


@pytest.mark.full
def test_bytes_of_a_gpu_kernel():
    """Kills operands that count whole where a kernel loads a part of them, or again where it loads them twice, and
    results that are left out."""
    whole, part, twice = (
        forecast(HLO, [KERNEL], Dumps(sass=LOOP, launches={"h": launch(1.0, loaded=loaded)}), TARGETS["h100"])[1]
        for loaded in (math.inf, 16.0, 1e9)
    )
    assert whole.bytes == twice.bytes > part.bytes
    assert part.bytes == 16 + (64 + 256)
    assert part.memory == pytest.approx(part.bytes / 3.35e6)


def schedule(**changed):
    options = {"bundles": 1500.0, "steps": 100, "units": {"MXU": 0.5, "XLU": 0.6}, "fills": 0.0, "spills": 0.25}
    return Schedule(**options | changed)


@pytest.mark.full
@pytest.mark.parametrize(
    ("changed", "microseconds", "held"),
    [
        ({}, 100.0, "schedule"),
        ({"rows": 16000.0}, 2 * 1.6e6 * 128**2 / 197e6, "matmuls"),
        ({"steps": 0}, 0.0, "memory"),
        ({"bundles": 15.0}, 35.0, "schedule"),
    ],
)
def test_forecast_of_a_tpu_program(changed, microseconds, held):
    """Kills the clock, and matrix units that are faster than their peak."""
    kernel = Kernel(name="k", implementation="mosaic_tpu", calls=("mpmd_map.0",))
    dumps = Dumps(schedules={"mpmd_map.0": schedule(**changed)})
    call = forecast(HLO, [kernel], dumps, TARGETS["v5e"])[1]
    assert call.microseconds == pytest.approx(microseconds, abs=1e-3)
    text = "\n".join(model_report.lines("program", [call], floor=10.0))
    assert f"held by its {held}" in text
    assert "XLU 60%, MXU 50%; fills 0%, spills 25%" in text


@pytest.mark.full
def test_lines():
    """Kills a sum without XLA's part, a share upside down, and a number that is not marked as predicted."""
    dumps = Dumps(sass=LOOP, launches={"h": launch(1000.0)})
    calls = forecast(HLO, [KERNEL], dumps, TARGETS["h100"])
    text = model_report.lines("program", calls, floor=sum(x.total for x in calls) / 4)
    assert text[0].startswith("program: predicted ")
    assert "25% of the floor" in text[0]
    assert "132 blocks, 1 a multiprocessor, 1 wave" in text[2]
    assert "x 1000; 8 instructions, 2 wgmma in 1 round, 1 barrier" in text[3]
    assert "XLA: 3 operations" in text[-1]
    dumps = Dumps(sass=LOOP, launches={"h": launch(float("nan"))})
    assert "trips unknown" in "".join(model_report.lines("program", forecast(HLO, [KERNEL], dumps, TARGETS["h100"]), 1))


def call_of(**changed):
    tpu = schedule(**changed)
    return Call(name="k", bytes=0.0, microseconds=100.0, memory=1.0, tpu=tpu)


@pytest.mark.full
@pytest.mark.parametrize(
    ("bundles", "compilers", "worse"),
    [(1570, "libtpu 1", 0), (1580, "libtpu 1", 1), (1720, "libtpu 2", 0), (1730, "libtpu 2", 1), (100, "libtpu 1", 0)],
)
def test_bundles_against_the_table(bundles, compilers, worse):
    """Kills a table that no kernel can fail, and another compiler's noise taken for a regression."""
    before = table.entry([call_of()], 10.0, "libtpu 1")
    after = table.entry([call_of(bundles=float(bundles))], 10.0, compilers)
    assert len(table.regressions(after, before)) == worse


def test_rounds_and_barriers_against_the_table():
    """Kills a loop that waits once more, or has a barrier more, unseen."""
    dumps = Dumps(sass=LOOP, launches={"h": launch(1000.0)})
    before = table.entry(forecast(HLO, [KERNEL], dumps, TARGETS["h100"]), 1.0, "ptxas 1")
    assert table.regressions(before, before) == []
    for what in ("rounds", "barriers"):
        fewer = [role | {what: role[what] - 1} for role in before["kernels"][0]["roles"]]
        (text,) = table.regressions(before, before | {"kernels": [before["kernels"][0] | {"roles": fewer}]})
        assert text == f"taylor: {what} in the loops [1], [0] in the table"
    assert "lacks it" in table.regressions(before, before | {"kernels": []})[0]
    assert "no such program" in table.regressions(before, None)[0]


def test_other_numbers_of_sequences_and_tokens():
    """Kills: the two steps of a TPU's pipeline counted for each sequence; fewer blocks than multiprocessors that take
    less time; a second wave that takes none; a kernel held by the memory that takes as long for fewer bytes."""

    def times(kernel: dict, *sizes: tuple[float, float], target: str = "h100") -> list[float]:
        entry = {"xla_microseconds": 0.0, "kernels": [kernel]}
        return [table.at_size(entry, TARGETS[target], rows=rows, length=length) for rows, length in sizes]

    assert times({"microseconds": 65.0, "steps": 130}, (0.25, 0.25), (1, 2), target="v5e") == [5.0, 129.0]
    hopper = {"microseconds": 100.0, "schedule": 100.0, "blocks": 64, "resident": 1, "waves": 1}
    assert times(hopper, (0.25, 1), (1, 4), (2, 1), (4, 1)) == [100.0, 400.0, 100.0, 200.0]
    assert times(hopper | {"microseconds": 150.0}, (0.25, 1), (4, 1)) == [100.0, 600.0]
    assert table.at_size({"xla_microseconds": 8.0, "kernels": []}, TARGETS["v6e"], rows=0.25, length=2) == 4.0


@pytest.mark.full
def test_save(tmp_path, monkeypatch):
    """Kills a table that loses the programs that were not compiled this time."""
    monkeypatch.setattr(table, "FILE", tmp_path / "predicted.json")
    table.save({"b": {"microseconds": 1.0}, "a": {"microseconds": 2.0}})
    table.save({"b": {"microseconds": 3.0}})
    assert table.read() == {"a": {"microseconds": 2.0}, "b": {"microseconds": 3.0}}
    assert list(table.read()) == ["a", "b"]
