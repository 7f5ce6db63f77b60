"""Sweep workers as cluster jobs. Kills: an option that is dropped, a job that ends without saving."""

import os
import re
import signal
import sys
import time

import pytest

from jaxzoo.cli.runner import run as run_command
from jaxzoo.cli.sweep_options import parse
from jaxzoo.sweep import cluster as cluster_module
from jaxzoo.sweep.cluster import STOPPING, ClusterWorkers, run_in_job
from jaxzoo.sweep.directory import About, SweepDirectory
from jaxzoo.sweep.queue import RunQueue
from tests.sweep.slurm import install

pytestmark = pytest.mark.full


@pytest.fixture
def directory(tmp_path):
    directory = SweepDirectory(tmp_path / "out")
    directory.create(About("file.py", "laptop"))
    return directory


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Stand-ins for Slurm's commands; all jobs wait."""
    home = install(tmp_path / "slurm", waiting=[str(i) for i in range(100)] + [f"1_{i}" for i in range(8)])
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    return home


@pytest.fixture
def signals():
    """Handlers that ignore the signals, as submitit's do, in place of those that a job replaces."""
    before = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def program(words):
    """Stand-in for a worker, pickled by its name."""
    print("said", *words)
    return int(words[1])


def workers_of(directory, *words):
    """Workers that the flags ask for."""
    options = parse(words)
    if options.cluster is None:
        return None
    return ClusterWorkers(options.cluster, options.of_cluster(), program, ["0"], directory)


def complaint(directory, capsys, *words) -> str:
    """The one line that refuses a command line."""
    assert run_command(lambda argv: workers_of(directory, *argv) and None, words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_slurm_is_asked_for_what_the_options_say(slurm, directory):
    """Kills: options that are dropped or lose their type, Slurm's own without its name, jobs that start again."""
    words = "--cluster slurm --workers 8 --cluster-options partition=gpu gpus_per_node=1 timeout_min=600 mem_gb=1.5"
    flags = [*words.split(), "setup=['module load cuda']", "slurm_account=00123"]
    workers = workers_of(directory, *flags)
    assert len({worker.name for worker in workers.start(range(8))}) == 8
    script = (slurm / "1.sbatch").read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE))
    assert asked["partition"] == "gpu"
    assert asked["gpus-per-node"] == "1"
    assert asked["time"] == "600"
    assert asked["mem"] == "1536MB"
    assert asked["account"] == "00123"
    assert asked["array"] == "0-7%8"
    assert asked["job-name"] == "jaxzoo-out"
    assert asked["signal"].startswith("USR2@")
    assert "no-requeue" in asked
    assert "\nmodule load cuda\n" in script


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--cluster", "slurm"], r"--cluster needs --workers N: how many jobs work at once"),
        (["--cluster-options", "a=1"], r"--cluster-options needs --cluster NAME"),
        (["--cluster-options", "a=1", "--cluster-options", "b=2"], r"--cluster-options is given twice"),
        (["--cluster-options", "timeout_min"], r"'timeout_min' must be NAME=VALUE, such as timeout_min=600"),
        (["--cluster", "nope", "--workers", "2"], r"--cluster nope: .*nope"),
        (["--cluster", "slurm", "--workers", "2", "--cluster-options", "partitoin=gpu"], r"'partitoin'.*\bpartition\b"),
        (["--cluster", "slurm", "--workers", "2", "--cluster-options", "timeout_min=long"], r'"timeout_min".*long'),
        (["--cluster", "slurm", "--workers", "2", "--cluster-options", "nodes=2"], r"nodes must be 1: .* --workers"),
    ],
)
def test_what_cannot_be_is_one_line(slurm, directory, capsys, words, part):
    """Kills: a traceback, an unknown option that is ignored."""
    assert re.search(part, complaint(directory, capsys, *words))


def test_without_submitit_the_remedy_is_named(directory, capsys, monkeypatch):
    """Kills: an ImportError, or a sweep that silently works on this machine."""
    monkeypatch.setitem(sys.modules, "submitit", None)
    line = complaint(directory, capsys, "--cluster", "local", "--workers", "2")
    assert line == "error: --cluster needs the library 'submitit'; pip install -e '.[cluster]'"


@pytest.mark.slow
def test_a_job_runs_the_worker_and_brings_its_error_message(directory):
    """Kills: a worker without its name, a failure that passes for success, a success that is reported as a failure, a
    message of submitit in place of the worker's. Jobs are processes, by submitit's local executor."""
    statuses = ("0", "3", "words")
    started = [ClusterWorkers("local", {}, program, [status], directory).start([0])[0] for status in statuses]
    wait_for(lambda: all(worker.ended() for worker in started))
    good, bad, lost = (worker.error_message() for worker in started)
    assert good is None
    assert bad == "exit status 3"
    assert lost == "ValueError: invalid literal for int() with base 10: 'words'"
    said = {file.read_text() for file in (directory.workers / "jobs").glob("*.out")}
    assert any(f"said {started[0].name} 0\n" in text for text in said)


def test_a_waiting_job_is_no_lost_worker(slurm, directory):
    """Kills: a waiting job that is replaced, or that starts when all runs are done."""
    workers = ClusterWorkers("slurm", {}, program, ["0"], directory)
    (worker,) = workers.start([0])
    assert not worker.ended()
    workers.stop(finished=False)
    assert (slurm / "1.cancelled").exists()
    assert "job 1 ended without a result, state " in (worker.error_message() or "")


def test_a_sweep_waits_for_cancelled_workers_to_save(slurm, directory, monkeypatch):
    """Kills: a command that ends while its workers still write, one that waits for workers of another command."""
    workers = ClusterWorkers("slurm", {}, program, ["0"], directory)
    (worker,) = workers.start([0])
    looks = []
    with RunQueue(directory, worker.name) as ours, RunQueue(directory, "another") as other:
        assert ours.take("a")
        assert other.take("b")

        def sleep(seconds):
            looks.append(seconds)
            if len(looks) == 3:
                ours.release("a")

        monkeypatch.setattr(cluster_module.time, "sleep", sleep)
        workers.stop(finished=False)
    assert len(looks) == 3


@pytest.mark.parametrize("number", STOPPING)
def test_a_scheduler_s_signal_ends_a_job_that_has_not_begun(signals, number):
    """Kills: submitit's handlers, of which one ignores the signal and one has the job start again."""

    def begin(words):
        os.kill(os.getpid(), number)
        time.sleep(10)
        return 0

    with pytest.raises(KeyboardInterrupt):
        run_in_job(begin, [], None)


def wait_for(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)
