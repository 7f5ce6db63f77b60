"""The command for the first minutes on a device: a hanging, a wrong and a crashing case cost no other its result."""

import argparse
import json
import subprocess
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import triton_packages
from pallas_kernels.verify import __main__ as command, worker
from pallas_kernels.verify.cases import CASES, TIMES
from tests.pallas_kernels import starved_cases
from tests.pallas_kernels.shared import PLATFORMS
from tests.pallas_kernels.verify_cases import Numbered

DEVICE = {"platform": "cpu", "device": "a CPU", "jax": "1", "capability": None}


@pytest.fixture
def verify(monkeypatch, tmp_path):
    """Runs the command: answers of the probes -> exit status, cases of the report; cases in each written report, and
    those of them that were run."""

    def run(*probes):
        answers, written = iter(probes), []
        save = command.save
        monkeypatch.setattr(command, "probe", lambda: next(answers))

        def noted(report, path):
            done = [x for x in report["cases"] if x["status"] != "not run"]
            written.append((len(report["cases"]), len(done)))
            save(report, path)

        monkeypatch.setattr(command, "save", noted)
        module, out = "tests.pallas_kernels.verify_cases", tmp_path / "found.json"
        status = command.main(["--cases", module, "--times", module, "--timeout", "2", "--out", str(out)])
        return status, json.loads(out.read_text()), written

    return run


def test_every_case_gets_its_verdict(verify, capsys, tmp_path):
    """Kills a hang that stops the run, a wrong number that passes, results that are lost with what comes after, and a
    report of a stopped run that has right cases alone, which would be a certificate."""
    status, report, written = verify(DEVICE, DEVICE, DEVICE)
    cases = report["cases"]
    assert status == 1
    assert [x["status"] for x in cases] == ["ok", "wrong", "timeout", "failed", "ok"]
    assert written == [(5, done) for done in (1, 2, 3, 4, 5, 5, 5)]
    where = cases[1]["where"]
    assert (where["output"], where["first_wrong"], where["nan"], where["wrong"]) == ("y", [0, 66, 1, 3], 1, 3)
    assert [i for i, x in enumerate(where["by_row_mod_64"]) if x > 0.01] == [2, 4, 5]
    assert [i for i, x in enumerate(where["by_column_mod_8"]) if x > 0.01] == [3]
    variants = {name: x["status"] for name, x in cases[1]["variants"].items()}
    assert variants == {"automatic barriers": "ok", "one segment": "wrong"}
    assert cases[2]["message"] == "killed while it was running"
    assert cases[3]["message"] == "RuntimeError: no such instruction"
    assert "2 of 5 cases are right" in capsys.readouterr().out
    assert [x.get("ms", x.get("message")) for x in report["times"]] == [2.0, "a case of this kernel is not right"]
    page = command.page_of(tmp_path / "found.json").read_text()
    for line in (
        "2 of 5 cases",
        "| toy wrong forward | wrong | y inf |",
        "first_wrong: [0, 66, 1, 3]",
        "| 2.000 (1.000 to 3.000) |",
    ):
        assert line in page, line


def test_a_process_without_memory_starts_again(monkeypatch, tmp_path, capsys):
    """Kills a case that counts as failed because other programs held the device's memory for a moment."""
    monkeypatch.setenv("STARVED", str(tmp_path / "mark"))
    args = command._parser().parse_args(["--cases", starved_cases.__name__, "--timeout", "9"])
    run = command.Run({"platform": "cpu"}, args, 0.0)
    (case,) = starved_cases.CASES["cpu"]
    result = run._check(case, 0, run._job(0), case.truth(case.inputs(0)))
    assert (result["status"], result["restarted"]) == ("ok", True)
    assert "started again" in capsys.readouterr().out


def test_truths_are_those_of_their_cases():
    """Kills the truth of another case or seed where several are computed ahead."""
    found = worker.truths([Numbered(i) for i in range(5)], seed=7)
    assert [x.tolist() for (x,) in found] == [[i, 7] for i in range(5)]


def test_ops_are_chosen_by_their_place():
    """Kills an op that was not asked for, and a worker that runs the entry of another."""
    entries = [types.SimpleNamespace(name=name) for name in ("a 1", "b 1", "a 2", "b 2")]
    for ops, places in ((["b"], [1, 3]), (None, [0, 1, 2, 3])):
        run = command.Run({"platform": "cpu"}, argparse.Namespace(ops=ops), 0.0)
        assert run._chosen({"cpu": entries}) == {i: entries[i] for i in places}


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_repeats_are_compared_bit_by_bit(kind, dtype):
    """Kills NaNs that differ from themselves, and zeros whose signs do not count."""
    x = kind(jnp.array([1.0, np.nan, 0.0], dtype))
    assert not worker._differ(x, kind(np.array(x)))
    assert worker._differ(x, kind(jnp.array([1.0, np.nan, -0.0], dtype)))


def test_a_lost_device_ends_the_run(verify):
    """Kills cases that are run on a device that answers no more."""
    status, report, _ = verify(DEVICE, None)
    assert status == 1
    assert [x["status"] for x in report["cases"]] == ["ok", "wrong", "timeout", "not run", "not run"]
    assert [x["message"] for x in report["times"]] == ["the device was lost"] * 2


def test_no_device(monkeypatch, capsys):
    """Kills a traceback where nothing answers, kernels on a GPU that cannot run them, and a run without packages."""
    monkeypatch.setattr(command, "probe", lambda: None)
    assert command.main([]) == 2
    assert "no device answers" in capsys.readouterr().err
    monkeypatch.setattr(triton_packages, "missing", lambda: "triton not installed; pip install it")
    for capability, kernels, error in (
        ("7.5", [], "no kernels in Mosaic run on a CPU of compute capability 7.5"),
        ("8.0", ["mosaic"], "no kernels in Mosaic run on a CPU of compute capability 8.0"),
        (None, ["triton"], "no kernels in Triton run on a CPU"),
        ("8.0", [], "triton not installed; pip install it"),
        ("9.0", ["triton"], "triton not installed; pip install it"),
    ):
        monkeypatch.setattr(command, "probe", lambda found=capability: DEVICE | {"capability": found})
        assert command.main([*(f"--kernels={x}" for x in kernels)]) == 2
        assert capsys.readouterr().err == f"verify: {error}\n"


def test_cases_are_served_and_ordered():
    """Kills a case that its kernel refuses, and a backward pass that is run before the forward pass alone."""
    for platform, cases in CASES.items():
        assert len({case.name for case in cases}) == len(cases)
        for case in cases:
            if case.implementation == "mosaic_tpu" or "cuda" in PLATFORMS:
                backend = case.OP.backends[case.implementation]
                assert backend.objection(case.problem) is None, (platform, case.name)
            if case.backward:
                names = [x.name for x in cases]
                assert names.index(case.name.replace("backward", "forward")) < names.index(case.name)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_rows_and_passes_are_told_apart(platform):
    """Kills a kernel that gives every row the numbers of the last one, the only row of a long call that is checked; and
    a wrong kernel whose calls are timed, because the words of its cases are not those that times are looked up by."""

    def kind(x):
        by_channel = getattr(x, "channel", False) or getattr(x, "decay", "") == "channel"
        return type(x), x.implementation, x.backward, by_channel

    both = [x for x in CASES[platform] if x.b > 1 and x.last(np.zeros((x.b, x.t, x.h, 1))).shape[0] == x.b]
    assert set(map(kind, both)) == set(map(kind, CASES[platform]))
    for case in CASES[platform]:
        assert case.name.split()[1:3] == [case.implementation, "backward" if case.backward else "forward"]


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_a_timed_kernel_has_cases(platform):
    """Kills minutes of the run that go into kernels that do not exist, and a time of one that nothing has checked."""
    kernels = [call for call in TIMES[platform] if call.implementation.startswith(("mosaic", "triton"))]
    timed = {(call.workload.op, call.implementation) for call in kernels}
    assert timed == {(case.name.split()[0], case.implementation) for case in CASES[platform]}


@pytest.mark.slow
@pytest.mark.skipif("cuda" not in PLATFORMS, reason="Mosaic GPU kernels need jax >= 0.11.2")
def test_kernels_are_interpreted_on_a_cpu(tmp_path):
    """Kills a truth or an adapter that is wrong itself."""
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "pallas_kernels.verify", "--timeout", "120", "--out", str(out)], check=False
    )
    assert {x["case"]: x["status"] for x in json.loads(out.read_text())["cases"] if x["status"] != "ok"} == {}
    assert done.returncode == 0
