"""Workers that are jobs: what a cluster is asked for, when a worker is lost, and that it ends when it should."""

import os
import re
import signal
import sys
import time
import types

import pytest

from jaxzoo.claims import Queue, bury, told_to_stop
from jaxzoo.cli.flags import ArgumentParser
from jaxzoo.cli.runner import run as run_command
from jaxzoo.cli.sweep_cluster import add_cluster_flags, cluster_of
from jaxzoo.sweep import cluster as cluster_module
from jaxzoo.sweep.cluster import STOPPING, Cluster, ClusterWorker, run_in_job
from jaxzoo.sweep.directory import About, SweepDirectory
from jaxzoo.train.loop import StopSignals
from tests.sweep.slurm import install


@pytest.fixture
def directory(tmp_path):
    directory = SweepDirectory(tmp_path / "out")
    directory.create(About("file.py", "laptop"))
    return directory


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Slurm's commands; no job ever gets a node."""
    home = install(tmp_path / "slurm", waiting=list(range(100)))
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
    """Stands for a worker; pickled by its name, as a worker's command is."""
    print("said", *words)
    return int(words[0])


def options(*words):
    parser = ArgumentParser()
    parser.add_argument("--workers", type=int)
    add_cluster_flags(parser)
    return parser.parse_args(words)


def complaint(directory, capsys, *words) -> str:
    """What a command line is refused with, one line."""
    sweep = types.SimpleNamespace(directory=directory)
    assert run_command(lambda argv: cluster_of(options(*argv), sweep) and None, words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_slurm_is_asked_for_what_the_options_say(slurm, directory):
    """Kills: options that are dropped or lose their type, Slurm's own without its name, jobs that start again."""
    words = "--cluster slurm --workers 8 --cluster-options partition=gpu gpus_per_node=1 timeout_min=600 mem_gb=1.5"
    flags = options(*words.split(), "setup=['module load cuda']", "--cluster-options", "slurm_account=00123")
    found = cluster_of(flags, types.SimpleNamespace(directory=directory))
    assert found
    found.submit(program, ["0"])
    script = (slurm / "1.sh").read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE))
    assert asked["partition"] == "gpu"
    assert asked["gpus-per-node"] == "1"
    assert asked["time"] == "600"
    assert asked["mem"] == "1536MB"
    assert asked["account"] == "00123"
    assert asked["job-name"] == "jaxzoo-out"
    assert asked["signal"].startswith("USR2@")
    assert "no-requeue" in asked
    assert "\nmodule load cuda\n" in script


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--cluster", "slurm"], r"--cluster needs --workers N: how many jobs work at once"),
        (["--cluster-options", "a=1"], r"--cluster-options needs --cluster NAME"),
        (["--cluster-options", "timeout_min"], r"'timeout_min' must be NAME=VALUE, such as timeout_min=600"),
        (["--cluster", "nope", "--workers", "2"], r"--cluster nope: .*nope"),
        (["--cluster", "slurm", "--workers", "2", "--cluster-options", "partitoin=gpu"], r"'partitoin'.*partition,"),
        (["--cluster", "slurm", "--workers", "2", "--cluster-options", "timeout_min=long"], r'"timeout_min".*long'),
        (["--cluster", "slurm", "--workers", "2", "--cluster-options", "nodes=2"], r"nodes must be 1: .* --workers"),
    ],
)
def test_what_cannot_be_is_one_line(slurm, directory, capsys, words, part):
    """Kills: a traceback, a complaint of ten lines, an option that is not known and silently left out."""
    assert re.search(part, complaint(directory, capsys, *words))


def test_a_machine_without_slurm_is_told_so(directory, capsys, monkeypatch):
    """Kills: a traceback of submitit's where a login node was meant."""
    monkeypatch.setenv("PATH", "")
    assert "srun" in complaint(directory, capsys, "--cluster", "slurm", "--workers", "2")


def test_without_submitit_the_remedy_is_named(directory, capsys, monkeypatch):
    """Kills: an ImportError, or a sweep that silently works on this machine."""
    monkeypatch.setitem(sys.modules, "submitit", None)
    line = complaint(directory, capsys, "--cluster", "local", "--workers", "2")
    assert line == "error: --cluster needs submitit, which is missing: pip install 'jaxzoo[cluster]'"


def test_a_job_runs_the_worker_and_brings_its_last_words(directory):
    """Kills: a worker without its name, a failure that passes for success, a success that is told as a failure, words
    of submitit's in place of the worker's. Jobs are processes, by submitit's local executor."""
    local = Cluster("local", {}, directory.workers / "jobs", "name")
    good, bad, lost = (ClusterWorker(local, program, [status], 0, directory) for status in ("0", "3", "words"))
    wait_for(lambda: all(worker.ended() for worker in (good, bad, lost)))
    assert good.last_words() is None
    assert bad.last_words() == "exit status 3"
    assert lost.last_words() == "ValueError: invalid literal for int() with base 10: 'words'"
    said = {file.read_text() for file in (directory.workers / "jobs").glob("*.out")}
    assert any(f"said 0 --name {good.name}\n" in text for text in said)
    assert len({good.name, bad.name, lost.name}) == 3


def test_a_waiting_job_is_no_lost_worker(slurm, directory):
    """Kills: a queue of the cluster's that is taken for the death of a worker, jobs that start when all is done."""
    worker = ClusterWorker(Cluster("slurm", {}, directory.workers / "jobs", "name"), program, ["0"], 0, directory)
    assert not worker.ended()
    worker.stop()
    assert worker.ended()  # at once, not when the accounting has noticed
    assert (slurm / "1.cancelled").exists()


def test_a_worker_at_work_is_told_and_not_cancelled(slurm, directory):
    """Kills: a cancelled job that has no time to save; a note that stays for a worker that is gone."""
    worker = ClusterWorker(Cluster("slurm", {}, directory.workers / "jobs", "name"), program, ["0"], 0, directory)
    with Queue(directory, worker.name):
        worker.stop()
        assert told_to_stop(directory, worker.name)
        assert not (slurm / "1.cancelled").exists()
        assert not worker.ended()
        worker.kill()
        assert (slurm / "1.cancelled").exists()
    bury(directory, [worker.name])
    assert not told_to_stop(directory, worker.name)


def test_a_silent_worker_is_lost(slurm, directory, monkeypatch):
    """Kills: a sweep that waits for a node that is gone, since the scheduler has not noticed it."""
    worker = ClusterWorker(Cluster("slurm", {}, directory.workers / "jobs", "name"), program, ["0"], 0, directory)
    monkeypatch.setattr(cluster_module, "LEASE_SECONDS", 0.0)  # looks at every turn
    with Queue(directory, worker.name, lease=1000):
        assert not worker.ended()
        sign = directory.workers / f"{worker.name}.json"
        old = sign.stat().st_mtime - 100
        os.utime(sign, (old, old))
        assert worker.ended()
        assert (slurm / "1.cancelled").exists()
        assert "job 1 is gone without a word, state " in (worker.last_words() or "")


def test_a_refused_job_is_a_worker_that_failed(slurm, directory):
    """Kills: a traceback where the cluster refuses a job, jobs of before that nobody stops."""
    cluster = Cluster("slurm", {}, directory.workers / "jobs", "name")
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    worker = ClusterWorker(cluster, program, ["0"], 0, directory)
    assert worker.ended()
    assert worker.last_words() == "slurm takes no job: sbatch: error: invalid partition"
    worker.stop()
    worker.kill()


@pytest.mark.parametrize("number", STOPPING)
def test_a_scheduler_s_signal_ends_a_job_that_has_not_begun(signals, number):
    """Kills: submitit's handlers, of which one ignores the signal and one has the job start again."""

    def begin(words):
        os.kill(os.getpid(), number)
        time.sleep(10)
        return 0

    with pytest.raises(KeyboardInterrupt):
        run_in_job(begin, [], None)


def test_a_job_s_threads_are_set_before_xla_reads_them(signals, monkeypatch):
    """Kills: jobs of one machine that each take all its cores."""
    monkeypatch.setenv("NPROC", "16")
    run_in_job(lambda words: 0, [], None)
    assert os.environ["NPROC"] == "16"
    run_in_job(lambda words: 0, [], 3)
    assert os.environ["NPROC"] == "3"


def test_a_scheduler_may_repeat_itself(signals):
    """Kills: a second signal that ends a worker while it saves."""
    with StopSignals(STOPPING, patient=True) as stop:
        assert not stop.requested
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
            assert stop.requested


def wait_for(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)
