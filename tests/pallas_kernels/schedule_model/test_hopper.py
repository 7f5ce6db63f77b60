"""The timing model of a Hopper multiprocessor, on pieces of machine code whose cycles are counted by hand."""

import pytest

from pallas_kernels.compile_check.targets import TARGETS
from pallas_kernels.schedule_model import hopper
from pallas_kernels.schedule_model.fences import unfenced_writes
from pallas_kernels.schedule_model.in_flight import touched_in_flight
from pallas_kernels.schedule_model.launch import Launch, ModuleLoop
from pallas_kernels.schedule_model.pipeline import DRAIN, HMMA, START, SUM, decode, simulate
from pallas_kernels.schedule_model.sass import SassLoop, loops, matmuls, own, read_sass
from tests.pallas_kernels.schedule_model.snippets import HEADER, LOOP


def code(*lines):
    """Control codes and text of instructions -> instructions."""
    text = "".join(f"   {codes.rjust(10)}        /*{16 * i:04x}*/    {x}\n" for i, (codes, x) in enumerate(lines))
    (kernel,) = read_sass(HEADER + text)
    return kernel.code


def cycles(*lines, warps=1):
    return simulate([decode(code(*lines))] * warps).cycles


def test_control_codes():
    """Kills codes in the wrong order, and a predicate taken for the operation."""
    (kernel,) = read_sass(LOOP)
    assert kernel.name == "taylor"
    assert len(kernel.code) == 19
    branch = kernel.code[2]
    assert (branch.waits, branch.read, branch.write, branch.stall) == ((0,), None, None, 6)
    assert (branch.operation, branch.base, kernel.target(2)) == ("BRA", "BRA", kernel.labels[".L_x_4"])
    assert [x.conditional for x in kernel.code[10:14]] == [False, True, False, True]
    (instruction,) = code(("3&2:-:1:Y:05", "@!UP0 MUFU.EX2 R4, R5"))
    assert (instruction.waits, instruction.write, instruction.base) == ((3, 2), 1, "MUFU")


def test_loops():
    """Kills a retry after the exit that makes a loop of everything before it, and padding that is one."""
    (kernel,) = read_sass(LOOP)
    found = loops(kernel)
    assert found[0] == SassLoop(6, 13)
    assert matmuls(own(kernel, found[0], found)) == {64: 1, 16: 1}
    assert found[1:] == [SassLoop(15, 16)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("stall", "expected"),
    [(1, 2 + 8), (5, 1 + 5 + 8)],
)
def test_stalls(stall, expected):
    """Kills stall counts that do not hold the next instruction: `stall`, 1, and the loop's turn of 8."""
    lines = [(f"-:-:-:Y:{stall:02}", "FADD R1, R2, R3"), ("-:-:-:Y:01", "FADD R4, R5, R6"), ("-:-:-:Y:01", "NOP")]
    assert cycles(*lines) == [expected]


@pytest.mark.full
def test_scoreboard():
    """Kills a result that is there at once: LDSM takes 33 cycles, then the loop's turn of 8."""
    assert cycles(("-:-:2:Y:01", "LDSM.16.M88.4 R4, [R8]"), ("2:-:-:Y:01", "FADD R1, R4, R3")) == [33 + 8]


@pytest.mark.full
def test_wgmma():
    """Kills matmuls at the wrong rate, and waits that do not wait: 30 to start, 64/2 + 16 to run, 16 to drain."""
    rows = [
        ("-:-:-:Y:01", "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24"),
        ("-:-:-:Y:01", "HGMMA.64x16x16.F32.BF16 R56, gdesc[UR8], RZ, !UPT, gsb0"),
        ("-:-:-:Y:02", "WARPGROUP.DEPBAR.LE gsb0, 0x0"),
    ]
    assert cycles(*rows) == [START + 32 + 16 + DRAIN + 8]
    in_flight = simulate([decode(code(*rows[:2], ("-:-:-:Y:02", "WARPGROUP.DEPBAR.LE gsb0, 0x1")))])
    # Waits for the group before the last: two iterations from its end to the end of the one after the next.
    assert in_flight.cycles == [(DRAIN + 8 + START + 48) / 2]
    assert in_flight.tensor == pytest.approx(48 / 51, abs=0.1)


@pytest.mark.full
def test_products_of_a_warp():
    """Kills sums that are there at once, products that wait for others' sums, and a tensor core without a rate."""
    one = lambda adds_to: ("-:-:-:Y:01", f"HMMA.16816.F32.BF16 R20, R4.reuse, R8, {adds_to}")  # noqa: E731
    assert cycles(*[one("R20")] * 4) == [4 * SUM]
    assert cycles(*[one("RZ")] * 4) == [3 + 8]
    assert cycles(*[one("R20")] * 4, warps=8) == [pytest.approx(8 * 4 * HMMA, rel=0.1)] * 8


@pytest.mark.full
def test_two_warps_share_the_issue_slot():
    """Kills warps that do not compete: 20 instructions each, one a cycle among them."""
    rows = [("-:-:-:Y:01", f"FADD R{i}, R2, R3") for i in range(20)]
    assert cycles(*rows) == [19 + 8]
    assert cycles(*rows, warps=2) == [pytest.approx(40, abs=2)] * 2


@pytest.mark.full
def test_warps_of_a_block_keep_together():
    """Kills a fast warpgroup that finishes before the slow one of its block has begun to."""
    slow = decode(code(*[("-:-:-:Y:15", "FADD R1, R2, R3")] * 8))
    fast = decode(code(*[("-:-:-:Y:01", "FADD R1, R2, R3")] * 8))
    alone = simulate([slow, fast]).cycles[1]
    together = simulate([slow, fast], block=[0, 0]).cycles[1]
    assert alone < 30
    assert together > 0.7 * simulate([slow]).cycles[0]


def launch(grid=132, trips=10.0, wgmma=None, shared_memory=100_000, threads=128):
    wgmma = {"64": 1, "16": 1} if wgmma is None else wgmma
    loop = [ModuleLoop(warpgroup=w, index=0, trips=trips, most=trips, wgmma=wgmma) for w in range(threads // 128)]
    return Launch(grid=grid, threads=threads, shared_memory=shared_memory, loops=loop, tensor_maps=[])


def predict(**changed):
    (kernel,) = read_sass(LOOP)
    options = {"registers": 168, "n_bytes": 0.0, "target": TARGETS["h100"]}
    call = {name: changed.pop(name) for name in list(changed) if name in options}
    return hopper.predict(kernel, launch(**changed), **options | call)


def test_time_is_trips_times_cycles():
    """Kills a loop counted once, and the overhead of a block left out."""
    (role,) = predict().roles
    expected = (10 * role.cycles + hopper.OVERHEAD) / 1980
    assert predict().microseconds == pytest.approx(expected)
    assert (role.trips, role.instructions, role.rounds, role.barriers) == (10, 8, 1, 1)
    assert role.matmuls == {64: 1, 16: 1}
    assert predict(n_bytes=3.35e6).microseconds == predict().microseconds
    assert predict(n_bytes=3.35e7).microseconds == pytest.approx(10)


@pytest.mark.full
def test_unrolled_loops():
    """Kills trips of the module taken for those of a loop that ptxas or LLVM has unrolled."""
    (kernel,) = read_sass(LOOP.replace("HGMMA.64x16x16", "HGMMA.64x64x16"))
    module = launch(wgmma={"64": 1}).loops
    (match,) = hopper.match_loops(kernel, loops(kernel), module).values()
    assert match == [(0, 5.0, 5.0)]


@pytest.mark.full
def test_a_kernel_without_matmuls():
    """Kills a kernel without matmuls that takes no time, and one whose main loop is a retry of a barrier."""
    (kernel,) = read_sass(LOOP.replace("HGMMA.64x64x16.F32.BF16", "FADD").replace("HGMMA.64x16x16.F32.BF16", "FADD"))
    called = launch(wgmma={})
    called.loops.insert(0, ModuleLoop(warpgroup=0, index=1, trips=2.0, most=2.0, wgmma={}))
    (role,) = hopper.predict(kernel, called, 168, 0.0, TARGETS["h100"]).roles
    assert (role.trips, role.instructions, role.matmuls) == (10, 8, {})


@pytest.mark.full
def test_unknown_trips_are_told():
    """Kills a loop that no loop of the module explains and that passes for explained."""
    assert predict(wgmma={"128": 1}).unknown_trips == 1
    assert predict(trips=float("nan")).unknown_trips == 1
    assert predict().unknown_trips == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("changed", "resident", "waves"),
    [
        ({"grid": 132}, 1, 1),
        ({"grid": 133}, 2, 1),
        ({"grid": 265}, 2, 2),  # shared memory holds two
        ({"grid": 265, "shared_memory": 10_000}, 3, 1),
        ({"grid": 265, "shared_memory": 10_000, "registers": 255}, 2, 2),  # 255 x 128 registers, twice in 65536
        ({"grid": 265, "shared_memory": 200_000}, 1, 3),
    ],
)
def test_waves(changed, resident, waves):
    """Kills blocks that do not fit, or blocks one after another that do."""
    found = predict(**changed)
    assert (found.resident, found.waves) == (resident, waves)


def test_writes_are_fenced():
    """Kills a fence that is not missed, and one after the reader that is taken for one before it."""
    (kernel,) = read_sass(LOOP)
    assert unfenced_writes(kernel) == []
    fence = "   -:-:-:Y:01        /*0050*/                   FENCE.VIEW.ASYNC.S\n"
    assert fence in LOOP
    (without,) = read_sass(LOOP.replace(fence, ""))
    (fault,) = unfenced_writes(without)
    assert fault.startswith("SYNCS.ARRIVE.TRANS64 RZ, [UR17], R15 follows STSM.16.M88.4 [R8+0x10800], R12 without")
    # The write at the end of one iteration, the arrival in the next.
    moved = LOOP.replace(fence, fence + fence.replace("0050", "0055")).replace(
        "   -:0:-:Y:02        /*00c0*/                   SYNCS.ARRIVE.TRANS64 RZ, [UR17], R15\n.L_x_5:\n",
        "   -:0:-:Y:02        /*00c0*/                   SYNCS.ARRIVE.TRANS64 RZ, [UR17], R15\n.L_x_5:\n"
        "   -:-:-:Y:02        /*00c8*/                   STS [R3], R4\n",
    )
    (looping,) = read_sass(moved)
    assert len(unfenced_writes(looping)) == 1


@pytest.mark.full
@pytest.mark.parametrize(("printed", "waits"), [("-", ()), ("2", (2,)), ("4&3", (4, 3)), ("0x38", (3, 4, 5))])
def test_scoreboards_of_an_instruction(printed, waits):
    """Kills three scoreboards, which nvdisasm prints as bits, that are read as digits."""
    (kernel,) = read_sass(LOOP.replace("1:-:-:Y:05        /*0100*/", f"{printed}:-:-:Y:05        /*0100*/"))
    assert kernel.code[16].waits == waits


def flying(*between):
    """Faults of a loop with instructions between its matmuls and the wait for them."""
    lines = "".join(f"   -:-:-:Y:01        /*0200*/                   {text}\n" for text in between)
    wait = "   -:-:-:Y:02        /*00a0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0\n"
    (kernel,) = read_sass(LOOP.replace(wait, lines + wait))
    return touched_in_flight(kernel)


def test_registers_of_a_wgmma_in_flight():
    """Kills a kernel that reads an accumulator, or overwrites an operand, before the matmul has ended."""
    second = "HGMMA.64x16x16.F32.BF16 R64, R4, gdesc[UR8], R64, gsb0"
    assert flying() == []
    assert flying("FADD R8, R23, R72", "STS.128 [R8], R4", second, "MOV R0, R7", "STSM.16.M88.4 [R4], R0") == []
    assert flying("CS2R R22, SRZ") == []
    for text in ("FADD R8, R23, R55", "MOV R24, R8", "STS.128 [R8], R21", "STG.E.64 desc[UR4][R2.64], R63"):
        assert flying(text) == [f"{text} touches registers of a wgmma in flight"]
    assert flying(second, "MOV R7, R0") == ["MOV R7, R0 touches registers of a wgmma in flight"]
    one_left = "WARPGROUP.DEPBAR.LE gsb0, 0x1"
    assert flying(second, one_left, "FADD R8, R24, R56") == []
    assert len(flying(second, one_left, "FADD R8, R24, R64")) == 1
