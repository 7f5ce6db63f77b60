"""Whole sweeps by jobs: a worker is killed, Ctrl-C comes, a job's time is over; nothing is lost or made twice."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from submitit.core.utils import DelayedSubmission

from jaxzoo.sweep.directory import SweepDirectory
from tests.sweep.slurm import install

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the jobs' processes in /proc"),
]

ROOT = Path(__file__).parents[2]
STEPS = 4000
EXPERIMENT = f"""
from jaxzoo.train.config import RunConfig, OptimizerConfig, TrainConfig
from jaxzoo.mixers import BaseConvConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.sweep import Experiment, Scale, grid
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.utils.figure import panels

TASK = mqar.paper(length=16, n_pairs=2, vocab_size=32)

def config(point):
    return RunConfig(
        model=LanguageModelConfig(
            pattern=(BaseConvConfig(n_taps=3),), d_model=8, n_layers=1, vocab_size=32, max_length=16, mlp="none"
        ),
        data=RecallDataConfig(
            train=(Examples(task=TASK, n_examples=64),), valid=(Examples(task=TASK, n_examples=32),)
        ),
        optimizer=OptimizerConfig(learning_rate=point["learning_rate"]),
        train=TrainConfig(
            steps={STEPS}, batch_size=8, valid_batch_size=16, seed=point["seed"], eval_every={STEPS},
            checkpoint_every=500, keep_checkpoints=100,
        ),
    )

def scale():
    return Scale(about="", points=grid(learning_rate=(1e-3, 1e-2), seed=(0, 1)), config=config)

def draw(results):
    return panels(1, 1, size=(2, 2), title="small")[0]

experiment = Experiment(
    title="Small", about="", scales={{"laptop": scale}}, claims=(), made_up=lambda point: 0.5, draw=draw
)
"""


class Command:
    """A running `jaxzoo sweep`, in a process group of its own, as a shell has it."""

    def __init__(self, folder: Path, *words: str, **environment: str):
        file = folder / "small.py"
        file.write_text(EXPERIMENT)
        command = f"-m jaxzoo.sweep --experiment {file} --out {folder / 'out'} --keep-checkpoints".split()
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
        self.directory = SweepDirectory(folder / "out")
        self._process = subprocess.Popen(
            [sys.executable, *command, *words],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def press_ctrl_c(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self, seconds: float = 400.0) -> tuple[int, str]:
        said, _ = self._process.communicate(timeout=seconds)
        return self._process.returncode, said

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        for pid, _ in jobs(self.directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()


def jobs(directory: SweepDirectory) -> Iterator[tuple[int, str]]:
    """The processes of jobs that run, and the names of their workers."""
    folder = directory.workers / "jobs"
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "submitit.core._submit" in words and str(folder) in words and "srun" not in words[1]:
                variables = (process / "environ").read_bytes().decode(errors="replace")
                array = re.search(r"SLURM_ARRAY_JOB_ID=(\d+)", variables)
                task = re.search(r"SLURM_ARRAY_TASK_ID=(\d+)", variables)
                job = re.search(r"(?:SUBMITIT_LOCAL|SLURM)_JOB_ID=(\d+)", variables)
                name = f"{array[1]}_{task[1]}" if array and task else job and job[1]
                if name and (folder / f"{name}_submitted.pkl").exists():
                    submission = DelayedSubmission.load(folder / f"{name}_submitted.pkl")
                    yield int(process.name), submission.args[1][0]


def wait_for(condition: Callable[[], object], seconds: float = 400.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.2)


def checkpoints(directory: SweepDirectory) -> dict[Path, int]:
    """Complete checkpoints of the runs, and what tells one from another of the same step."""
    found = {}
    for record in directory.path.glob("runs/*/newest_checkpoint.json"):
        steps = [path for path in record.parent.glob("checkpoints/*") if path.name.isdecimal()]
        for path in sorted(steps, key=lambda path: int(path.name))[:-1]:  # the newest may be unfinished
            found[path] = path.stat().st_ino
    return found


def results(directory: SweepDirectory) -> dict[Path, tuple[int, int]]:
    """The results, and what tells one from another of the same run."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.path.glob("results/*.json")}


def assert_complete(directory: SweepDirectory, said: str) -> None:
    rows = [json.loads(line) for line in directory.rows.read_text().splitlines()]
    assert len(rows) == 4, said
    assert len({json.dumps(row["point"]) for row in rows}) == 4
    for row in rows:
        assert row["steps"] == STEPS
        metrics = (directory.path / "runs" / row["id"] / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line)["step"] for line in metrics]
        assert steps == sorted(steps)
        assert len([line for line in metrics if "valid/accuracy" in line]) == 1
    assert not list(directory.path.glob("running/*.json"))


def test_a_killed_worker_s_runs_go_on_and_so_does_an_interrupted_sweep(tmp_path):
    """Kills: runs that wait for a dead worker or begin again, a run that two workers make, jobs that die of a Ctrl-C
    in the terminal before they have saved, jobs that go on after a sweep has ended."""
    with Command(tmp_path, "--cluster", "local", "--workers", "2") as sweep:
        directory = sweep.directory

        def caught() -> bool:
            """Kills a worker that has saved something of a run."""
            running = {name: pid for pid, name in jobs(directory)}
            saved = {path.parts[-3] for path in checkpoints(directory)} - directory.done()
            reports = directory.queue().progress()
            for task, told in reports.items():
                if task in saved and told["worker"] in running:
                    os.kill(running[told["worker"]], signal.SIGKILL)
                    lost.update({other: each for other, each in reports.items() if each["worker"] == told["worker"]})
                    return True
            return False

        def taken_over() -> bool:
            reports = directory.queue().progress()
            return any(reports.get(task, told)["worker"] != told["worker"] for task, told in lost.items())

        lost: dict[str, dict] = {}
        wait_for(lambda: directory.path.exists() and caught())
        before, made = checkpoints(directory), results(directory)
        wait_for(taken_over)
        time.sleep(3)
        sweep.press_ctrl_c()
        status, said = sweep.end()
        assert status in (0, 130), said
        assert "a worker ended (job " in said
        assert "Traceback" not in said  # of a process between us and a worker, which ends it a second later
        assert not list(jobs(directory)), said
        assert not any(directory.queue().is_held(task) for task in directory.queue().progress())
    before |= checkpoints(directory)
    made |= results(directory)
    with Command(tmp_path, "--cluster", "local", "--workers", "2") as sweep:
        status, said = sweep.end()
    assert status == 0, said
    assert_complete(directory, said)
    assert before.items() <= checkpoints(directory).items()
    assert made.items() <= results(directory).items()


def test_slurm_s_time_limit_and_queue(tmp_path):
    """Kills: a job whose end comes as a signal and that does not save or is started again by submitit, a sweep that
    waits for a job without a node when all runs are done. Slurm's commands are stand-ins."""
    home = install(tmp_path / "slurm", waiting=["1_2"])
    options = ["--cluster-options", "partition=gpu", "cpus_per_task=1"]
    path = {"PATH": f"{home}:{os.environ['PATH']}"}
    with Command(tmp_path, "--cluster", "slurm", "--workers", "3", *options, **path) as sweep:
        directory = sweep.directory
        wait_for(lambda: len(checkpoints(directory)) >= 2)
        saved, running = checkpoints(directory), dict(jobs(directory))
        assert len(running) == 2
        pid, name = next(iter(running.items()))
        before = set(directory.done())
        os.kill(pid, signal.SIGUSR2)  # as Slurm does before the time is over
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: pid not in dict(jobs(directory)))
        assert not any(told["worker"] == name for told in directory.queue().progress().values())
        wait_for(lambda: (home / "2.sh").exists() or len(directory.done()) == 4)
        status, said = sweep.end()
    assert status == 0, said
    assert "a worker ended" not in said
    assert (home / "1_2.cancelled").exists()
    assert not (home / "1_0.cancelled").exists()
    assert not (home / "1_1.cancelled").exists()
    assert len(directory.done()) > len(before)
    assert_complete(directory, said)
    assert saved.items() <= checkpoints(directory).items()
