"""The compile check passes what is fit for an H100 and for TPUs, and refuses what is not."""

import json
import sys

import jax
import pytest

from pallas_kernels.compile_check import __main__, run, table, targets
from pallas_kernels.compile_check.calls import Call
from pallas_kernels.compile_check.compiler_text import Kernel, read_program, read_ptxas, with_ptxas
from pallas_kernels.compile_check.hopper import HopperCounts, LoopCounts
from pallas_kernels.compile_check.report import Report, lines
from pallas_kernels.compile_check.targets import TARGETS, missing
from pallas_kernels.registry import OPS
from tests.pallas_kernels import single_workloads
from tests.pallas_kernels.aot import needs
from tests.pallas_kernels.shared import full, slow

# Of ptxas 13.0, for the kernel of unfit_workloads.py and for two that fit. Some reports hold bytes that are no text.
SPILLING = """\
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient \
register resources for the wgmma pipeline in the function 'body_mosaic_gpu_kernel'
ptxas warning : Registers are spilled to local memory in function 'body_mosaic_gpu_kernel', 2752 bytes spill stores, \
2752 bytes spill loads
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'body_mosaic_gpu_kernel' for 'sm_90a'
ptxas info    : Function properties for body_mosaic_gpu_kernel
    1760 bytes stack frame, 2752 bytes spill stores, 2752 bytes spill loads
ptxas info    : Used 255 registers, used 2 barriers, 1760 bytes cumulative stack size, 1 bytes smem
ptxas info    : Compile time = 2102.805 ms
\ufffd\x00
"""
FIT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'states_mosaic_gpu_kernel' for 'sm_90a'
ptxas info    : Function properties for states_mosaic_gpu_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 226 registers, used 2 barriers, 1 bytes smem
ptxas info    : Compile time = 216.786 ms
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'states_mosaic_gpu_kernel' for 'sm_90a'
ptxas info    : Function properties for states_mosaic_gpu_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 228 registers, used 2 barriers, 1 bytes smem
ptxas info    : Compile time = 247.552 ms
"""
GPU_CALL = (
    '  %mpmd_map.{n} = f32[4]{{0}} custom-call(%k.1, %v.1), custom_call_target="mosaic_gpu_v2", '
    'metadata={{op_name="jit(run)/cond/branch_0_fun/states/mpmd_map"}}, '
    'backend_config={{kernel_hash = "{identity}", module = "ML\\EFR"}}\n'
)
TPU_CALL = (
    '  %forward.1 = bf16[4]{0} custom-call(%refs_0_.1), custom_call_target="tpu_custom_call", metadata={op_name='
    '"jit(run)/cond/branch_0_fun/forward/pallas_call" stack_frame_id=13}, backend_config={"scoped_memory_configs":[],'
    '"used_scoped_memory_configs":[{"memory_space":"1","offset":"0","size":"4063232"}]}\n'
)
OTHER_CALL = '  %s = f32[4]{0} custom-call(%x), custom_call_target="Sharding", metadata={op_name="jit(run)/a/b"}\n'


def test_ptxas_spills_and_remarks_are_read():
    """Kills a reader that sees the register count only."""
    kernels, notes = read_ptxas(SPILLING + FIT)
    assert [(x.name, x.registers, x.spill_stores, x.spill_loads) for x in kernels] == [
        ("body", 255, 2752, 2752),
        ("states", 226, 0, 0),
        ("states", 228, 0, 0),
    ]
    assert len(notes) == 1
    assert notes[0].startswith("(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized")
    assert read_ptxas("ptxas warning : 'setmaxnreg' ignored\n")[1] == ["'setmaxnreg' ignored"]


def test_kernels_of_a_program():
    """Kills kernels taken for one because of their name, counted twice, or missed; calls of XLA taken for kernels."""
    hlo = "".join(GPU_CALL.format(n=n, identity=x) for n, x in enumerate(["\\B5a", "\\B5b", "\\B5a"]))
    kernels = with_ptxas(read_program(hlo + OTHER_CALL, {"\\B5b": 76832}), read_ptxas(FIT)[0])
    assert [(x.name, x.implementation, x.registers, x.shared_memory) for x in kernels] == [
        ("states", "mosaic_gpu", 226, None),
        ("states", "mosaic_gpu", 228, 76832),
    ]
    assert [x.calls for x in kernels] == [("mpmd_map.0", "mpmd_map.2"), ("mpmd_map.1",)]
    tpu = Kernel(name="forward", implementation="mosaic_tpu", vmem=4063232, calls=("forward.1",))
    assert read_program(TPU_CALL, {}) == [tpu]
    assert read_program(OTHER_CALL, {}) == []


def report(**changed):
    names = {"op": "op", "kind": "forward", "shape": "s", "target": "h100"}
    return Report(**names | {"temporary": 5, "inputs_outputs": 100 * 2**20} | changed)


def gpu_kernel(registers=200, stores=0, loads=0, shared=232448):
    spills = {"spill_stores": stores, "spill_loads": loads}
    return Kernel(name="a", implementation="mosaic_gpu", registers=registers, shared_memory=shared, **spills)


TPU_KERNEL = Kernel(name="b", implementation="mosaic_tpu", vmem=2**20)


LOOP = LoopCounts(warpgroups=[0, 1], trips=64.0, instructions={"FFMA": 8.0, "MUFU": 2.5}, rounds=2, barriers=3)
UNKNOWN = Call(
    name="a", bytes=3e6, limits={"memory": 1.0, "issue": 2.0}, times=4,
    hopper=HopperCounts(blocks=1, loops=[LOOP], unknown_trips=1),
)  # fmt: skip

PROBLEMS = [
    ({"kernels": [gpu_kernel(), gpu_kernel(stores=8)]}, "a: spills 8 bytes, loads 0"),
    ({"kernels": [gpu_kernel(loads=4)]}, "a: spills 0 bytes, loads 4"),
    ({"kernels": [gpu_kernel(registers=None)]}, "a: ptxas reported nothing"),
    ({"kernels": [gpu_kernel(shared=232449)]}, "a: 232449 bytes of shared memory, of 232448"),
    ({"kernels": [gpu_kernel()], "notes": ["(C7512) serialized"]}, "ptxas: (C7512) serialized"),
    ({"kernels": [TPU_KERNEL], "temporary": 6 * 2**20}, "copies: temporaries of 6291456 bytes, 6% of inputs and"),
    ({"calls": [UNKNOWN]}, "a: how often a loop runs is not known"),
    ({"error": "ValueError: no"}, "does not compile: ValueError: no"),
]


def test_problems():
    """Kills: any of the rules removed."""
    for changed, problem in PROBLEMS:
        bad = report(**changed)
        assert len(bad.problems()) == 1
        assert bad.problems()[0].startswith(problem)
        assert lines(bad)[-1] == f"  ! {bad.problems()[0]}"


def test_what_is_fit_has_no_problem():
    """Kills rules of one platform applied to another: a GPU's temporaries, XLA's."""
    much = 50 * 2**20
    assert report(kernels=[gpu_kernel()], temporary=much).problems() == []
    assert report(kernels=[TPU_KERNEL], temporary=4 * 2**20).problems() == []
    assert report(kernels=[TPU_KERNEL], temporary=6 * 2**20, kept=2 * 2**20).problems() == []
    assert report(temporary=much).problems() == []
    assert [report(kernels=x).implementation for x in ([], [gpu_kernel()], [TPU_KERNEL])] == [
        "xla",
        "mosaic_gpu",
        "mosaic_tpu",
    ]


def test_counts_of_a_program():
    """Kills a call that runs several times and counts once, and a limit that is not named."""
    text = lines(report(calls=[UNKNOWN], floor=2.0))
    assert text[1].strip() == "4 launches, 12 MB, at least 8 us; floor 2 us"
    assert text[2].strip() == "a: issue 2.0, memory 1.0 us"
    counts = "10 instructions (8 FFMA, 2 MUFU), 2 rounds of wgmma, 3 barriers"
    assert text[3].strip() == f"warpgroups [0, 1] x 64: {counts}"


def test_command_line(monkeypatch, capsys, tmp_path):
    """Kills an exit status that does not depend on the finding, and a missing tool met by a traceback."""
    monkeypatch.setattr(__main__, "missing", lambda platform: None)
    monkeypatch.setattr(__main__, "_versions", lambda names: {"jax": "1"})
    found = {"value": [report(kernels=[gpu_kernel()])]}
    monkeypatch.setattr(__main__, "check", lambda ops, **options: iter(found["value"]))
    assert __main__.main([]) == 0
    assert "OK: 1 programs, 1 kernels" in capsys.readouterr().out
    found["value"].append(report(kernels=[gpu_kernel(stores=4)]))
    assert __main__.main(["--json", str(tmp_path / "out.json")]) == 1
    assert "FAILED: 1 of 2 programs" in capsys.readouterr().out
    entries = json.loads((tmp_path / "out.json").read_text())["programs"]
    assert [len(x["problems"]) for x in entries] == [0, 1]
    assert entries[1]["kernels"][0]["spill_stores"] == 4
    found["value"] = []
    assert __main__.main([]) == 1
    monkeypatch.setattr(__main__, "missing", lambda platform: "x is not installed; pip install x")
    assert __main__.main(["--target", "v5e"]) == 2
    assert capsys.readouterr().err == "compile_check: x is not installed; pip install x\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("platform", "absent", "remedy"),
    [
        ("tpu", "libtpu", "libtpu is not installed; pip install libtpu"),
        ("cuda", "jax_plugins", f"pip install jax-cuda13-plugin=={jax.__version__}"),
        ("cuda", "absl", "pip install absl-py"),
        ("cuda", "ptxas", "ptxas is not on the PATH; pip install nvidia-cuda-nvcc"),
        ("cuda", "nvdisasm", "nvdisasm is not on the PATH; pip install nvidia-cuda-nvdisasm"),
    ],
)
def test_missing_tools_are_named(platform, absent, remedy, monkeypatch):
    """Kills a tool that is used and not looked for."""
    monkeypatch.setattr(targets, "_installed", lambda module: module.split(".")[0] != absent)
    monkeypatch.setattr(targets, "cuda_tool", lambda tool: None if absent == tool else f"/bin/{tool}")
    assert remedy in str(missing(platform))


def test_a_failing_worker_is_an_error(monkeypatch):
    """Kills a crash of the compiler that passes for a program without kernels."""
    monkeypatch.setattr(sys, "executable", "false")
    entries = list(run.check(OPS, targets=["h100"], kinds=["forward"]))
    assert entries
    assert all(x.problems() == ["does not compile: status 1"] for x in entries)


EXPECTED = {
    "taylor_attention": {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"},
    "sliding_window": {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"},
    "gated_linear_attention": {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"},
    "selective_scan": {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"},
    "delta_chunks": {"cuda": "mosaic_gpu", "tpu": "xla"},
    "ut_transform": {"cuda": "mosaic_gpu", "tpu": "xla"},
    "wkv4": {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"},
}
"""Implementations that the automatic choice takes at the headline shapes."""


QUICK = {"b4_h16_t8192", "b4_h16_t8192_w64", "b4_h16_t8192_k128", "b4_t8192_d1024_n16", "b4_t8192_d1024"}
"""Shapes that CI compiles, one of each op."""


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (full if group.split()[1] in QUICK and group.endswith("backward") and name != "v6e" else slow)(group, name)
        for group in single_workloads.GROUPS
        for name in TARGETS
    ],
)
def test_headline_shapes_fit(group, name, capsys):
    """Kills a kernel that spills, is serialised by ptxas, writes without a fence, does not compile, or that the
    platform does not choose; one with more bundles, rounds of wgmma or barriers than the committed table says; and a
    loop whose trips are not known."""
    needs(name)
    entries = list(run.check_module(single_workloads.__name__, group, targets=[name]))
    with capsys.disabled():
        print("", *(line for entry in entries for line in lines(entry)), sep="\n")
    assert len(entries) == 1
    for entry in entries:
        assert entry.problems() == []
        assert entry.implementation == EXPECTED[entry.op][TARGETS[name].platform]
        assert entry.seconds > 0
        check_counts(entry)
        sizes = {"mosaic_gpu": ("registers", "shared_memory"), "mosaic_tpu": ("vmem",)}.get(entry.implementation, ())
        assert all(getattr(kernel, size) > 0 for kernel in entry.kernels for size in sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("group", "shapes"), [("key_dims", ("k24", "k32")), ("float32", ("float32",))])
def test_wider_keys_and_float32_fit(group, shapes):
    """Kills kernels of k = 24 and 32, and of float32, that spill, are serialised, or are not taken: states of 96 and of
    144 registers a thread, or operands in two parts, leave little to the rest."""
    needs("h100")
    entries = list(
        run.check(
            ["taylor_attention"],
            targets=["h100"],
            groups=[group],
            kinds=["forward_backward"],
            implementation="mosaic_gpu",
        )
    )
    assert [entry.shape for entry in entries] == [f"b4_h16_t8192_{x}" for x in shapes]
    for entry in entries:
        assert entry.problems() == []
        assert entry.implementation == "mosaic_gpu"
        check_counts(entry)


@pytest.mark.parametrize("name", [full("v5e"), slow("v6e"), slow("h100")])
def test_decays_per_channel_fit(name):
    """Kills kernels of decays per channel that do not compile, are not taken, spill or copy their inputs, or have more
    bundles, rounds of wgmma or barriers than the committed table says."""
    needs(name)
    options = {"targets": [name], "groups": ["channel"], "kinds": ["forward_backward"]}
    entries = list(run.check(["gated_linear_attention"], **options))
    assert len(entries) == 2
    for entry in entries:
        assert entry.problems() == []
        assert entry.implementation == EXPECTED[entry.op][TARGETS[name].platform]
        check_counts(entry)


def check_counts(entry):
    """Every kernel is counted, and no worse than in the committed table."""
    assert {call.name for call in entry.calls if call.is_kernel} == {kernel.name for kernel in entry.kernels}
    if entry.kernels:
        names = (entry.op, entry.kind, entry.shape, entry.target)
        found = table.entry(entry.calls, entry.floor, __main__.compilers(entry.target))
        assert table.regressions(found, table.read().get(table.key(*names))) == []


@pytest.mark.slow
def test_a_spilling_kernel_is_refused():
    """Kills a check that loses the words of ptxas on the way."""
    needs("h100")
    (entry,) = run.check_module("tests.pallas_kernels.unfit_workloads", "spills", targets=["h100"])
    remark, spill = entry.problems()
    assert remark.startswith("ptxas: (C7511)")
    assert spill.startswith("body: spills")
    assert entry.kernels[0].registers == 255


@pytest.mark.slow
def test_a_copy_on_a_tpu_is_refused():
    """Kills temporaries that are not measured: keys of one head repeated for 16."""
    needs("v5e")
    (entry,) = run.check_module("tests.pallas_kernels.unfit_workloads", "copies", targets=["v5e"])
    assert [problem[:19] for problem in entry.problems()] == ["copies: temporaries"]
