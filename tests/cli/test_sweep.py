"""`jaxzoo sweep`. Kills: runs that are lost or repeated after kill -9."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxzoo.cli.sweep import main
from jaxzoo.sweep.directory import About, SweepDirectory
from tests.sweep.small import write_experiment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Folder with a finished sweep and the command's output."""
    folder = tmp_path_factory.mktemp("made")
    file = write_experiment(folder, MODELS='("attention",)', SEEDS="(0,)")
    done = command(folder, "--experiment", file.name, "--out", "out", "--workers", "1")
    assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stdout)
    return folder


@pytest.fixture
def here(made, monkeypatch):
    """Function that runs the command in this process: `here(*words)` returns the exit status."""
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)
    for name, value in {**environment(), "NPROC": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(made)
    before = signal.getsignal(signal.SIGTERM)
    yield lambda *words: main(words)
    signal.signal(signal.SIGTERM, before)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess:
    argv = [sys.executable, "-m", "jaxzoo.sweep", *words]
    return subprocess.run(argv, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "NPROC")}
    return {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


@pytest.mark.full
def test_one_command_makes_runs_and_report(made):
    """Kills: workers that do not start, results that are not gathered, a sweep without its figure."""
    out = made / "out"
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [row["point"]["learning_rate"] for row in rows] == [1e-3, 1e-2]
    assert rows[0]["machine"].endswith("cores")
    for name in ("figure.png", "figure.svg", "table.md", "claims.json"):
        assert (out / name).stat().st_size > 0, name
    printed = (made / "printed").read_text()
    assert "2 runs, 2 to make" in printed
    assert "2 of 2 runs done, 0 running, 0 failed" in printed


@pytest.mark.full
def test_the_same_command_again_makes_nothing(made, here, capsys):
    """Kills: a sweep that trains again what is done."""
    results = made / "out/results"
    before = {path.name: path.stat().st_mtime_ns for path in results.iterdir()}
    assert here("--experiment", "small.py", "--out", "out") == 0
    assert "2 runs, 0 to make" in capsys.readouterr().out
    assert {path.name: path.stat().st_mtime_ns for path in results.iterdir()} == before


@pytest.mark.full
def test_a_report_is_made_again_without_the_runs(made, monkeypatch, capsys, tmp_path):
    """Kills: published results that need the runs; changed results that are not noticed."""
    monkeypatch.chdir(made)
    kept = tmp_path / "small"
    kept.mkdir()
    for name in ("sweep.json", "results.jsonl"):
        shutil.copy(made / "out" / name, kept)
    again = ["--report", str(kept), "--experiment", "small.py"]
    assert main(again) == 0
    assert capsys.readouterr().out == f"{kept}: Small\n"
    for name in ("results.jsonl", "figure.svg", "figure.png", "table.md", "claims.json", "sweep.json"):
        assert (kept / name).read_bytes() == (made / "out" / name).read_bytes()
    assert len(list(kept.iterdir())) == 6
    results, about = (kept / "results.jsonl").read_bytes(), (kept / "sweep.json").read_bytes()
    (kept / "results.jsonl").write_bytes(results.replace(b'"steps": 6', b'"steps": 7', 1))
    assert main(again) == 2
    assert "results.jsonl is damaged, or was changed after the report; restore it" in capsys.readouterr().err
    (kept / "results.jsonl").write_bytes(results)
    at = len(about) // 2
    (kept / "sweep.json").write_bytes(about[:at] + bytes([about[at] ^ 1]) + about[at + 1 :])
    assert main(again) == 2
    error = capsys.readouterr().err
    assert "sweep.json" in error
    assert error.count("\n") == 1


WRONG = [
    ([], "--experiment FILE is required"),
    (["--experiment", "none.py"], "experiment file none.py does not exist"),
    (["--experiment", "small.py", "--scale", "labtop"], "no scale 'labtop'; did you mean 'laptop'?"),
    (["--experiment", "small.py", "--workers", "0"], "--workers 0 must be positive"),
    (
        ["--experiment", "other.py", "--out", "out"],
        "out holds the sweep of small.py at scale laptop, not of other.py",
    ),
    (["--experiment", "small.py", "--out", "strange"], "strange holds 'file', which no sweep wrote"),
    (["--experiment", "empty.py"], "empty.py must define `experiment`, an Experiment"),
    (["--experiment", "broken.py"], "experiment file broken.py, line 2: ZeroDivisionError"),
    (["--experiment", "small.py", "--report", "strange"], "--report: strange holds no sweep"),
    (["--experiment", "small.py", "--out", "new", "--reuse", "strange"], "--reuse: strange holds no sweep"),
    (["--experiment", "small.py", "--dry-run", "--reuse", "strange"], "--reuse: strange holds no sweep"),
    (["--frobnicate"], "unknown option --frobnicate"),
]


def test_what_is_wrong_is_one_line(tmp_path, monkeypatch, capsys):
    """Kills: tracebacks, and sweeps that write where something else is."""
    file = write_experiment(tmp_path)
    SweepDirectory(tmp_path / "out").create(About("small.py", "laptop"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text(file.read_text())
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("x = 1\nx / 0\n")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange/file").touch()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for words, line in WRONG:
        assert main(words) == 2, words
        said = capsys.readouterr().err
        assert line in said
        assert said.count("\n") == 1
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, words


@pytest.mark.slow
def test_killed_workers_and_interrupts_lose_nothing(tmp_path):
    """Kills: runs of a killed worker that are lost or begin again, workers that outlive their sweep, an interrupt that
    throws work away."""
    write_experiment(tmp_path, STEPS="4000", RATES="(1e-3, 2e-3, 3e-3)", SEEDS="(0, 1)", MODELS='("attention",)')
    words = ["--experiment", "small.py", "--out", "out", "--workers", "2"]
    argv = [sys.executable, "-m", "jaxzoo.sweep", *words]
    text = (
        (tmp_path / "small.py")
        .read_text()
        .replace("eval_every=EVAL_EVERY, checkpoint_every=CHECKPOINT_EVERY", "eval_every=500, checkpoint_every=100")
    )
    (tmp_path / "small.py").write_text(text.replace("log_every=1", "log_every=50"))
    sweep = subprocess.Popen(argv, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    killed = wait_for(lambda: with_checkpoint(tmp_path / "out"))
    os.kill(killed, signal.SIGKILL)
    directory = SweepDirectory(tmp_path / "out")
    wait_for(
        lambda: any(
            told["attempt"] == 2 and told.get("step", 0) > 300 for told in directory.queue().progress().values()
        )
    )
    sweep.send_signal(signal.SIGINT)
    assert sweep.wait(timeout=120) == 130
    assert not list((tmp_path / "out/running").glob("*.json"))
    sweep = subprocess.Popen(argv, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    wait_for(lambda: directory.queue().progress())
    sweep.kill()
    sweep.wait()
    wait_for(lambda: not directory.queue().progress())  # its workers save and end
    done = command(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    other = command(tmp_path, "--experiment", "small.py", "--out", "unbroken", "--workers", "2")
    assert other.returncode == 0, other.stderr
    unbroken = [json.loads(line) for line in (tmp_path / "unbroken/results.jsonl").read_text().splitlines()]
    for row, expected in zip(rows, unbroken, strict=True):
        assert row["curve"] == expected["curve"]
        assert row["metrics"] == expected["metrics"]


def wait_for(condition, seconds: float = 120.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("the condition never became true")


def with_checkpoint(out: Path) -> int | None:
    """Returns the process id of a worker that has saved a checkpoint."""
    for checkpoint in out.glob("runs/*/checkpoints/[0-9]*"):
        told = SweepDirectory(out).queue().progress().get(checkpoint.parts[-3])
        if checkpoint.name.isdecimal() and told:
            worker = told["worker"]
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                if worker.encode() in process.read_bytes():
                    return int(process.parent.name)
    return None
