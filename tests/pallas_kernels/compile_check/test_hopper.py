"""What a Hopper kernel executes, counted by hand; and what it must not: unfenced writes, use of registers in flight."""

import pytest

from pallas_kernels.compile_check.hopper import count, match_loops
from pallas_kernels.compile_check.launch import Launch, ModuleLoop
from pallas_kernels.compile_check.races import touched_in_flight, unfenced_writes
from pallas_kernels.compile_check.sass import SassLoop, loops, matmuls, own, read_sass
from pallas_kernels.compile_check.targets import TARGETS
from tests.pallas_kernels.compile_check.snippets import LOOP


def test_instructions():
    """Kills control codes taken for an operation, and a predicate taken for one."""
    (kernel,) = read_sass(LOOP)
    assert kernel.name == "taylor"
    assert len(kernel.code) == 19
    branch = kernel.code[2]
    assert (branch.operation, branch.base, kernel.target(2)) == ("BRA", "BRA", kernel.labels[".L_x_4"])
    assert [x.conditional for x in kernel.code[10:14]] == [False, True, False, True]
    (three,) = read_sass(LOOP.replace("1:-:-:Y:05        /*0100*/", "0x38:-:-:Y:05        /*0100*/"))
    assert len(three.code) == 19  # three scoreboards, which nvdisasm prints as bits
    (negated,) = read_sass(LOOP.replace("@!P5 BRA `(.L_x_4)", "@!UP0 MUFU.EX2 R4, R5", 1))
    assert negated.code[2].operation == "MUFU.EX2"


def test_loops():
    """Kills a retry after the exit that makes a loop of everything before it, and padding that is one."""
    (kernel,) = read_sass(LOOP)
    found = loops(kernel)
    assert found[0] == SassLoop(6, 13)
    assert matmuls(own(kernel, found[0], found)) == {64: 1, 16: 1}
    assert found[1:] == [SassLoop(15, 16)]


def launch(*, grid=132, trips=(10.0,), wgmma=None):
    """One warpgroup for each of `trips`."""
    wgmma = {"64": 1, "16": 1} if wgmma is None else wgmma
    found = [ModuleLoop(warpgroup=w, index=0, trips=x, wgmma=wgmma) for w, x in enumerate(trips)]
    return Launch(grid=grid, threads=128 * len(trips), shared_memory=0, loops=found, tensor_maps=[])


def test_counts():
    """Kills a loop counted once, for one warpgroup, one warp or one block, and one with the instructions around it."""
    (kernel,) = read_sass(LOOP)
    found = count(kernel, launch(trips=(10.0, 10.0, 3.0)))
    both, third = found.loops
    assert (both.warpgroups, both.trips, both.rounds, both.barriers) == ([0, 1], 10, 1, 1)
    assert (third.warpgroups, third.trips) == ([2], 3)
    kinds = {"BAR": 1, "WARPGROUP": 2, "HGMMA.64x64x16": 1, "HGMMA.64x16x16": 1, "BRA": 2, "SYNCS": 1}
    assert both.instructions == kinds
    runs = 132 * 4 * (10 + 10 + 3)
    assert found.executed == {kind: n * runs for kind, n in kinds.items()}


def test_limits():
    """Kills a multiprocessor with one scheduler, matmuls of a warp that count for four, and slow special functions."""
    (kernel,) = read_sass(LOOP.replace("SYNCS.ARRIVE.TRANS64 RZ, [UR17], R15", "MUFU.EX2 R15, R15"))
    limits = count(kernel, launch(trips=(1000.0,))).limits(TARGETS["h100"])
    # One warp per scheduler: 8 instructions and 8 cycles of its special function unit per iteration.
    assert limits["issue"] == pytest.approx(8 * 1000 / 1980)
    assert limits["MUFU"] == pytest.approx(8 * 1000 / 1980)
    assert limits["matmuls"] == pytest.approx(132 * 1000 * 2 * 64 * 80 * 16 / 989e6)


@pytest.mark.full
def test_unrolled_loops():
    """Kills trips of the module taken for those of a loop that ptxas or LLVM has unrolled."""
    (kernel,) = read_sass(LOOP.replace("HGMMA.64x16x16", "HGMMA.64x64x16"))
    (match,) = match_loops(kernel, loops(kernel), launch(wgmma={"64": 1}).loops).values()
    assert match == {0: 5.0}


@pytest.mark.full
def test_inner_loops():
    """Kills an inner loop that counts once for each iteration of the outer one, or for none."""
    inner = """\
.L_x_6:
   -:-:-:Y:01        /*0200*/                   HGMMA.64x32x16.F32.BF16 R56, gdesc[UR8], RZ, !UPT, gsb0
   -:-:-:Y:01        /*0210*/              @P1 BRA `(.L_x_6)
"""
    wait = "   -:-:-:Y:02        /*00a0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0\n"
    (kernel,) = read_sass(LOOP.replace(wait, inner + wait))
    called = launch(trips=(10.0,))
    called.loops.append(ModuleLoop(warpgroup=0, index=1, trips=35.0, wgmma={"32": 1}))
    (loop,) = count(kernel, called).loops
    assert (loop.instructions["HGMMA.64x32x16"], loop.instructions["HGMMA.64x64x16"]) == (3.5, 1)
    called.loops[-1] = ModuleLoop(warpgroup=0, index=1, trips=float("nan"), wgmma={"32": 1})
    assert count(kernel, called).loops[0].instructions["HGMMA.64x32x16"] == 1


@pytest.mark.full
def test_a_kernel_without_matmuls():
    """Kills a kernel without matmuls that executes nothing, and one whose main loop is a retry of a barrier."""
    (kernel,) = read_sass(LOOP.replace("HGMMA.64x64x16.F32.BF16", "FADD").replace("HGMMA.64x16x16.F32.BF16", "FADD"))
    called = launch(wgmma={})
    called.loops.insert(0, ModuleLoop(warpgroup=0, index=1, trips=2.0, wgmma={}))
    (loop,) = count(kernel, called).loops
    assert (loop.trips, loop.instructions["FADD"]) == (10, 2)


@pytest.mark.full
def test_unknown_trips_are_told():
    """Kills a loop that no loop of the module explains and that passes for explained."""
    (kernel,) = read_sass(LOOP)
    found = [count(kernel, launch(**x)) for x in ({"wgmma": {"128": 1}}, {"trips": (float("nan"),)}, {})]
    assert [x.unknown_trips for x in found] == [1, 1, 0]
    assert found[0].loops[0].trips == 1


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
