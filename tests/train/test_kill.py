"""kill -9 at any moment. Kills: a resumed run that differs from an unbroken one."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

STEPS = 12
FLAGS = (
    *("--train.steps", str(STEPS), "--train.checkpoint-every", "1", "--train.eval-every", "5"),
    *("--train.keep-best", "1", "--train.best-metric", "valid/accuracy"),
)


def start(file: Path, directory: Path, environment: dict[str, str], *flags: str) -> subprocess.Popen:
    """The command line in a process of its own, with one device: on several, some versions of XLA's CPU sum in the
    order in which threads arrive, so that two unbroken runs can differ in the last bit."""
    command = [
        sys.executable,
        "-m",
        "jaxzoo.train",
        "--config",
        str(file),
        "--run-dir",
        str(directory),
        *flags,
    ]
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1", **environment}
    with directory.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)


def complete(file: Path, directory: Path, environment: dict[str, str], *flags: str) -> None:
    """The same, to its end."""
    assert start(file, directory, environment, *flags).wait(timeout=240) == 0


def steps_done(directory: Path) -> int:
    file = directory / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith(b"\n")), default=0)


def kept(directory: Path) -> list[str]:
    """The steps of the checkpoints; nothing else may lie among them."""
    return sorted(p.name for p in (directory / "checkpoints").iterdir())


def saving(directory: Path) -> bool:
    return any(p.name.endswith("-tmp") for p in (directory / "checkpoints").glob("*"))


def kill_when(process: subprocess.Popen, moment: Callable[[], bool]) -> None:
    """Kills: the process at the first moment that `moment` is true; it must not end by itself before."""
    deadline = time.monotonic() + 240
    while not moment():
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def event_files(directory: Path) -> int:
    """How many processes have begun to train in the directory."""
    return len(list(directory.glob("events.out.tfevents.*")))


class Moment:
    """Some seconds after an event."""

    def __init__(self, seconds: float):
        self.seconds, self.event = seconds, math.inf

    def past(self, happened: bool) -> bool:
        """Whether the seconds are over since `happened` was first true."""
        if happened:
            self.event = min(self.event, time.monotonic())
        return time.monotonic() >= self.event + self.seconds


@pytest.mark.slow
def test_kill_in_the_middle_of_a_save(mqar_file, rows, tmp_path, compilation):
    """Kills: half a checkpoint that is taken for a whole one, rows twice, a cursor ahead of its state."""
    complete(mqar_file, tmp_path / "whole", compilation, *FLAGS)
    broken, flags = tmp_path / "broken", FLAGS
    for wanted in (3, 6, 9):
        process = start(mqar_file, broken, compilation, *flags)
        kill_when(process, lambda wanted=wanted: steps_done(broken) >= wanted and saving(broken))
        if saving(broken):
            break
        flags = (*FLAGS, "--resume")
    else:
        pytest.fail("all three kills came between two saves")
    assert steps_done(broken) < STEPS
    complete(mqar_file, broken, compilation, *FLAGS, "--resume")
    assert rows("broken") == rows("whole")
    assert kept(broken) == kept(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixture_file", "text_file"])
def test_many_kills(name, request, rows, tmp_path, compilation):
    """Kills: what one lucky moment hides: before the first checkpoint, in a validation, twice at one step."""
    file = request.getfixturevalue(name)
    complete(file, tmp_path / "whole", compilation, *FLAGS)
    broken, rng = tmp_path / "broken", random.Random(0)
    for _ in range(7):
        flags = ("--resume",) if (broken / "config.json").exists() else ()
        before = event_files(broken)
        process = start(file, broken, compilation, *FLAGS, *flags)
        moment = Moment(seconds=rng.random())
        kill_when(process, lambda n=before, m=moment: m.past(event_files(broken) > n))
        if steps_done(broken) >= STEPS - 3:
            break
    complete(file, broken, compilation, *FLAGS, "--resume")
    assert rows("broken") == rows("whole")
    assert kept(broken) == kept(tmp_path / "whole")
