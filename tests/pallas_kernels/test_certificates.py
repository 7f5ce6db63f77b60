"""Kernels are the automatic choice only where they were verified, or where the user says so."""

import dataclasses
import json
import types

import jax
import pytest

from pallas_kernels import certificates, dispatch, kernel_sources, triton_packages
from pallas_kernels.taylor_attention import taylor_attention
from pallas_kernels.taylor_attention.api import OP as TAYLOR
from pallas_kernels.taylor_attention.problem import Problem
from tests.pallas_kernels.shared import MARKERS, PLATFORMS, lowered

OP, OTHER = "taylor_attention", "sliding_window"
DEVICE = types.SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3", compute_capability="9.0")
NOT_VERIFIED = f"not verified on compute capability 9.0 with JAX {certificates.minor_version(jax.__version__)}"


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Function of changed fields -> a report of `verify` in a file. No setting, an empty folder of certificates."""
    monkeypatch.delenv(certificates.SETTING)
    monkeypatch.setattr(certificates, "FOLDER", tmp_path / "shipped")
    monkeypatch.setattr(dispatch, "target_device", lambda ctx: DEVICE)
    certificates.FOLDER.mkdir()

    def write(path, **changed):
        right = {"device": DEVICE.device_kind, "capability": "9.0", "cores": 132, "jax": jax.__version__}
        right |= {"cases": cases("ok"), "kernels": {op: kernel_sources.kernel_hash(op) for op in (OP, OTHER)}}
        path.write_text(json.dumps(right | changed))
        return path

    yield write
    certificates._read.cache_clear()


def cases(*statuses, op=OP):
    return [{"case": f"{op} mosaic_gpu forward {i}", "status": status} for i, status in enumerate(statuses)]


def chosen(platform, implementation=None):
    """Whether a program for a platform has a kernel."""
    arrays = jax.eval_shape(Problem(b=1, t=128, h=2, k=16, v=64).inputs)
    text = lowered(lambda *x: taylor_attention(*x, implementation=implementation), arrays, platform)
    return MARKERS[platform] in text


@pytest.mark.parametrize("platform", PLATFORMS)
def test_choice(platform, report, tmp_path, monkeypatch, caplog):
    """Kills a kernel that runs by default where nobody has verified it, and a setting that is not obeyed."""
    assert not chosen(platform)
    assert caplog.text.count("python -m pallas_kernels.verify") <= 1  # none if another test has said it before
    assert chosen(platform, {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"}[platform])
    with certificates.using("all"):
        assert chosen(platform)
    monkeypatch.setenv(certificates.SETTING, "all")
    assert chosen(platform)
    with certificates.using("none"):
        assert not chosen(platform)
        assert certificates.objection("9.0") == "PALLAS_KERNELS is none"
    with certificates.using(""):
        assert certificates.objection("9.0") == NOT_VERIFIED
    monkeypatch.setenv(certificates.SETTING, str(report(tmp_path / "own.json")))
    assert chosen(platform)
    monkeypatch.delenv(certificates.SETTING)
    assert not chosen(platform)
    report(certificates.FOLDER / "h100.json")
    assert chosen(platform)
    with certificates.using("none"):
        assert not chosen(platform)
        assert certificates.certified() == frozenset()


def test_what_a_certificate_is_for(report):
    """Kills one that counts for another architecture, version of JAX or code of the kernels, and one with a case that
    is wrong; an H200's counts for every GPU of its compute capability."""
    hashes = {OP: "other", OTHER: kernel_sources.kernel_hash(OTHER)}
    changes = [{"capability": "8.0"}, {"jax": "0.0.1"}, {"kernels": hashes}, {"cases": []}]
    for i, changed in enumerate(changes):
        report(certificates.FOLDER / f"{i}.json", **changed)
    assert certificates.certified() == {("8.0", OP)}
    assert certificates.objection("9.0") == NOT_VERIFIED
    assert certificates.objection(None) == "not verified on a device that is not known"
    wrong = cases("wrong", op=OTHER)
    report(certificates.FOLDER / "right.json", device="NVIDIA H200", cases=cases("ok") + wrong)
    assert certificates.objection("9.0") is None
    assert certificates.objection("9.0", OP) is None
    assert certificates.objection("9.0", OTHER) == NOT_VERIFIED
    assert certificates.verified_multiprocessors("9.0") == {132}


def test_a_certificate_is_for_one_language(report, monkeypatch):
    """Kills Triton kernels that Mosaic's certificate turns on, and the reverse; a plan for a GPU on which kernels in
    the other language ran; and a report in a language that nobody knows."""
    monkeypatch.setattr(triton_packages, "missing", lambda: None)
    as_triton = {"language": "triton", "cores": 108, "kernels": {OP: kernel_sources.kernel_hash(OP, "triton")}}
    for capability in ("8.0", "9.0"):
        report(certificates.FOLDER / f"triton {capability}.json", capability=capability, **as_triton)
        assert certificates.objection(capability, OP, "triton") is None
    assert certificates.objection("9.0", OP) == NOT_VERIFIED
    assert "not verified on compute capability 8.6 with JAX" in str(certificates.objection("8.6", OP, "triton"))
    assert certificates.verified_multiprocessors("8.0") == {108}
    assert certificates.verified_multiprocessors("9.0") == frozenset()
    mosaic = report(certificates.FOLDER / "mosaic.json", capability="8.6")
    assert ("8.6", OP) in certificates.certified()
    assert "not verified on compute capability 8.6 with JAX" in str(certificates.objection("8.6", OP, "triton"))
    certificates._read.cache_clear()
    report(mosaic, language="cuda")
    with pytest.raises(ValueError, match="language 'cuda'"):
        certificates.certified()


@pytest.mark.parametrize("setting", ["", "all"])
def test_kernels_of_a_gpu(setting, report, monkeypatch, caplog):
    """Kills kernels that a GPU cannot run, lines that say nothing of what could be done, and lines about nothing."""
    monkeypatch.setattr(triton_packages, "missing", lambda: None)
    certificates._say_once.cache_clear()
    with certificates.using(setting):
        for capability, language in (("7.5", "mosaic"), ("7.5", "triton"), ("8.0", "mosaic"), ("10.0", "mosaic")):
            found = certificates.objection(capability, OP, language)
            assert found == f"no kernels in {language.title()} run on compute capability {capability}"
        assert certificates.objection("8.9", OTHER, "triton") == f"{OTHER} has no kernels in Triton"
        assert not caplog.text
        for capability in ("8.0", "9.0", "12.0"):
            assert (certificates.objection(capability, OP, "triton") is None) == (setting == "all")
        lines = [x.getMessage() for x in caplog.records]
        assert [line.split(" not verified on ")[1][:23] for line in lines] == (
            [] if setting else ["compute capability 8.0 ", "compute capability 12.0"]
        )
        assert all("pallas_kernels.verify checks them there in minutes; its report can be" in line for line in lines)
        monkeypatch.setattr(triton_packages, "missing", lambda: "triton not installed; pip install it")
        assert certificates.objection("8.0", OP, "triton") == "triton not installed; pip install it"
        assert "compute capability 8.0 need packages" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        ([("a", "ok", "xy"), ("b", "failed", "x")], True),
        ([("a", "ok", "xy"), ("b", "failed", "z")], False),
        ([("a", "ok", "xy"), ("b", "not run", "")], False),
        ([("a", "ok", "xy"), ("b", "failed", ""), ("b", "ok", "z")], True),
        ([("a", "ok", "xy"), ("b", "wrong", "x"), ("b", "ok", "x")], False),
    ],
)
def test_a_case_that_did_not_run(found, counts, report):
    """Kills an op that is certified although programs of it never ran, or although one was wrong once; and one that is
    not although all of its programs ran, in other cases or reports."""
    listed = [{"case": f"{OP} {name}", "status": status, "programs": list(x)} for name, status, x in found]
    report(certificates.FOLDER / "first.json", cases=listed[:2])
    report(certificates.FOLDER / "second.json", cases=listed[2:])
    assert (certificates.objection("9.0", OP) is None) == counts


def test_kernels_are_chosen_op_by_op(report, monkeypatch):
    """Kills a kernel that runs by default because those of another op were verified, or that waits for theirs."""
    if "cuda" not in PLATFORMS:
        return
    report(certificates.FOLDER / "other.json", cases=cases("ok", op=OTHER) + cases("failed"))
    assert not chosen("cuda")
    certificates._read.cache_clear()
    report(certificates.FOLDER / "other.json", cases=cases("ok") + cases("not run", op=OTHER))
    assert chosen("cuda")


def test_what_changes_a_hash(tmp_path, monkeypatch):
    """Kills a hash that misses code which an op's kernels import, directly or not, or that counts comments, docstrings,
    layout, names of files, another op's code or Triton's, which has a hash of its own."""
    package = tmp_path / "pallas_kernels"
    monkeypatch.setattr(kernel_sources, "ROOT", package)

    def write(name, text):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)

    def found():
        return [kernel_sources.kernel_hash.__wrapped__(op) for op in (OP, OTHER)]

    def changed(name, text):
        before = found()
        write(name, text)
        return [now != then for now, then in zip(found(), before, strict=True)]

    write(f"{OP}/api.py", f"from pallas_kernels.{OP} import kernel\n")
    write(f"{OP}/kernel.py", "from pallas_kernels.tiles import size\n\ndef f(x):\n    return x + size\n")
    write("tiles.py", "size = 64\n")
    write(f"{OTHER}/api.py", "from pallas_kernels import tiles\n")
    commented = '"""Words."""\nfrom pallas_kernels.tiles import size\n# why\n'
    commented += 'def f(x):\n    """Words."""\n    return (x\n + size)\n'
    assert changed(f"{OP}/kernel.py", commented) == [False, False]
    assert changed("tiles.py", 'size = 64\n"""Tokens."""\n') == [False, False]
    assert changed("certificates.py", "size = 1\n") == [False, False]
    assert changed(f"{OP}/kernel.py", commented.replace("+", "-")) == [True, False]
    assert changed("tiles.py", "size = 128\n") == [True, True]
    in_triton = kernel_sources.kernel_hash.__wrapped__
    write("triton_call.py", "from pallas_kernels import tiles\n")
    write(f"{OP}/triton.py", "from pallas_kernels import triton_call\nfrom pallas_kernels.demo import triton_kernels\n")
    table = "from pallas_kernels.taylor_attention import kernel\n"
    write(f"{OP}/api.py", table + "T = {'xla': 1}\n")
    before = found()
    words = (
        table.replace("import kernel", "import kernel, triton")
        + "from pallas_kernels.taylor_attention.triton import x\n"
    )
    words += "\n\ndef _load_triton():\n    return triton\n\n\nT = {'xla': 1, 'triton': triton.f(x)}\n"
    write(f"{OP}/api.py", "from pallas_kernels.op import nothing\n" + words.replace("f(x)", "f(x, nothing)"))
    assert found() == before
    first = in_triton(OP, "triton")
    assert changed("triton_call.py", "from pallas_kernels import tiles\nx = 1\n") == [False, False]
    second = in_triton(OP, "triton")
    assert changed(f"{OP}/triton.py", (package / f"{OP}/triton.py").read_text() + "y = 2\n") == [False, False]
    assert len({first, second, in_triton(OP, "triton"), found()[0]}) == 4
    assert changed(f"{OTHER}/api.py", "from pallas_kernels import tiles\nx = 1\n") == [False, True]
    before = found()
    (package / "tiles.py").rename(package / "bricks.py")
    write(f"{OP}/kernel.py", (package / f"{OP}/kernel.py").read_text().replace("tiles", "bricks"))
    assert found()[0] == before[0]


def test_what_is_chosen_by_name_only():
    """Kills Hopper kernels of float32 and of wide keys as an automatic choice: they are not in `verify`."""
    problem = Problem(b=1, t=128, h=2, k=16, v=64)
    served = [problem, dataclasses.replace(problem, k=24), dataclasses.replace(problem, dtype="float32")]
    for case in served if "cuda" in PLATFORMS else ():
        automatic = TAYLOR.choose(case, None)
        assert ("mosaic_gpu" in automatic) == (case is problem)
        assert TAYLOR.choose(case, "mosaic_gpu") == ("mosaic_gpu",)


@pytest.mark.full
def test_bad_settings(report, tmp_path, monkeypatch):
    """Kills a misspelt file that turns the kernels off without a word."""
    (tmp_path / "text").write_text("all")
    for setting in ("missing.json", str(tmp_path / "text")):
        monkeypatch.setenv(certificates.SETTING, setting)
        with pytest.raises(ValueError, match=r"PALLAS_KERNELS=.* must be 'all', 'none' or a report of python -m"):
            certificates.certified()
