"""Kernels are the automatic choice only where they were verified, or where the user says so."""

import dataclasses
import json
import types

import jax
import pytest

from pallas_kernels import certificates, dispatch
from pallas_kernels.taylor_attention import taylor_attention
from pallas_kernels.taylor_attention.backends import BACKENDS, KERNELS
from pallas_kernels.taylor_attention.problem import Problem
from tests.pallas_kernels.shared import MARKERS, PLATFORMS, lowered

OP, OTHER = "taylor_attention", "sliding_window"
DEVICE = types.SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3", compute_capability="9.0")


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Function of changed fields -> a report of `verify` in a file. No setting, an empty folder of certificates."""
    monkeypatch.delenv(certificates.SETTING)
    monkeypatch.setattr(certificates, "FOLDER", tmp_path / "shipped")
    monkeypatch.setattr(dispatch, "_device", lambda ctx: DEVICE)
    certificates.FOLDER.mkdir()

    def write(path, **changed):
        right = {"device": DEVICE.device_kind, "jax": jax.__version__, "cases": cases("ok")}
        right["kernels"] = {op: certificates.kernel_hash(op) for op in (OP, OTHER)}
        path.write_text(json.dumps(right | changed))
        return path

    yield write
    certificates._certified_by.cache_clear()


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
        assert certificates.objection(DEVICE) == "PALLAS_KERNELS is none"
    with certificates.using(""):
        assert certificates.objection(DEVICE) == f"not verified on {DEVICE.device_kind}"
    monkeypatch.setenv(certificates.SETTING, str(report(tmp_path / "own.json")))
    assert chosen(platform)
    monkeypatch.delenv(certificates.SETTING)
    assert not chosen(platform)
    report(certificates.FOLDER / "h100.json")
    assert chosen(platform)
    with certificates.using("none"):
        assert not chosen(platform)
        assert certificates.certified() == frozenset()


def test_what_a_certificate_is_for(report, monkeypatch):
    """Kills one that counts for another device, version of JAX or of the kernels, and one with a wrong case."""
    hashes = {OP: "other", OTHER: certificates.kernel_hash(OTHER)}
    wrong = {"cases": cases("ok", "wrong")}
    changes = [{"device": "other"}, {"jax": "0.0.1"}, {"kernels": hashes}, wrong, {"cases": []}]
    for i, changed in enumerate(changes):
        report(certificates.FOLDER / f"{i}.json", **changed)
    assert certificates.certified() == {("other", OP)}
    assert certificates.objection(DEVICE) == f"not verified on {DEVICE.device_kind}"
    assert certificates.objection(None) == "not verified on a device that is not known"
    report(certificates.FOLDER / "right.json", cases=cases("ok") + cases("wrong", op=OTHER))
    assert certificates.objection(DEVICE) is None
    assert certificates.objection(DEVICE, OP) is None
    assert certificates.objection(DEVICE, OTHER) == f"not verified on {DEVICE.device_kind}"


def test_kernels_are_chosen_op_by_op(report, monkeypatch):
    """Kills a kernel that runs by default because those of another op were verified, or that waits for theirs."""
    if "cuda" not in PLATFORMS:
        return
    report(certificates.FOLDER / "other.json", cases=cases("ok", op=OTHER) + cases("failed"))
    assert not chosen("cuda")
    certificates._certified_by.cache_clear()
    report(certificates.FOLDER / "other.json", cases=cases("ok") + cases("not run", op=OTHER))
    assert chosen("cuda")


def test_a_hash_is_of_the_files_of_its_op(tmp_path, monkeypatch):
    """Kills a hash that misses a file of the op, of an op whose code it uses, or one that kernels share, and one that
    changes with another op's."""
    for name in (*certificates.SHARED, f"{OP}/a", f"{OTHER}/a"):
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    monkeypatch.setattr(certificates, "__file__", str(tmp_path / "certificates.py"))
    found = lambda: (certificates.kernel_hash.__wrapped__(OP), certificates.kernel_hash.__wrapped__(OTHER))  # noqa: E731
    first = found()
    (tmp_path / f"{OP}/a.py").write_text("x")
    own = found()
    (tmp_path / f"{certificates.SHARED[0]}.py").write_text("x")
    shared = found()
    assert own[0] != first[0]
    assert own[1] == first[1]
    assert all(now != before for now, before in zip(shared, own, strict=True))
    (tmp_path / f"{OTHER}/a.py").write_text(f"from pallas_kernels.{OP}.a import x\n")
    using = found()
    (tmp_path / f"{OP}/b.py").write_text("x")
    assert found()[1] != using[1]


def test_what_is_chosen_by_name_only():
    """Kills Hopper kernels of float32 and of wide keys as an automatic choice: they are not in `verify`."""
    problem = Problem(b=1, t=128, h=2, k=16, v=64)
    served = [problem, dataclasses.replace(problem, k=24), dataclasses.replace(problem, dtype="float32")]
    for case in served if "cuda" in PLATFORMS else ():
        automatic = dispatch.choose(BACKENDS, case, None, kernels=KERNELS)
        assert ("mosaic_gpu" in automatic) == (case is problem)
        assert dispatch.choose(BACKENDS, case, "mosaic_gpu", kernels=KERNELS) == ("mosaic_gpu",)


@pytest.mark.full
def test_bad_settings(report, tmp_path, monkeypatch):
    """Kills a misspelt file that turns the kernels off without a word."""
    (tmp_path / "text").write_text("all")
    for setting in ("missing.json", str(tmp_path / "text")):
        monkeypatch.setenv(certificates.SETTING, setting)
        with pytest.raises(ValueError, match=r"PALLAS_KERNELS=.* must be 'all', 'none' or a report of python -m"):
            certificates.certified()
