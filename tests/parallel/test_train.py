"""`jaxzoo train` in two real processes: what they compute, how they stop, what they leave to others."""

import json
import shutil
import signal
import textwrap
from pathlib import Path

import pytest

from jaxzoo.cli.train import main
from jaxzoo.train.metrics import read_rows
from jaxzoo.train.run_dir import RunDirectory
from tests.parallel.launch import launched

CONFIG = """
    from jaxzoo.train.config import RunConfig, TrainConfig
    from jaxzoo.mixers import BaseConvConfig
    from jaxzoo.models import LanguageModelConfig
    from jaxzoo.tasks.mqar import MQARConfig
    from jaxzoo.tasks.recall_data import Examples, RecallDataConfig

    task = MQARConfig(vocab_size=32, length=16, n_pairs=2)
    config = RunConfig(
        model=LanguageModelConfig(pattern=(BaseConvConfig(),), d_model=16, vocab_size=32, max_length=16, mlp="none"),
        data=RecallDataConfig(
            train=(Examples(task=task, n_examples=256),), valid=(Examples(task=task, n_examples=13),)
        ),
        train=TrainConfig(
            steps=STEPS, batch_size=8, valid_batch_size=8, log_every=1, eval_every=0, checkpoint_every=EVERY
        ),
    )
"""
MESH = ["--mesh.data", "2", "--mesh.fsdp", "2"]


@pytest.fixture
def config(tmp_path):
    """`config(steps, every)`: the words that name a tiny run with as many steps, and a checkpoint every so many."""

    def config(steps, every):
        file = tmp_path / "tiny.py"
        file.write_text(textwrap.dedent(CONFIG).replace("STEPS", str(steps)).replace("EVERY", str(every)))
        return ["--config", str(file)]

    return config


def alone(words, run, *more):
    """The same run in this process, on its 8 devices."""
    assert main([*words, "--run-dir", str(run), "--mesh.data", "8", *more]) == 0


def metrics(run):
    rows = read_rows(run / "metrics.jsonl", whole=True)
    return {(row["step"], name): value for row in rows for name, value in row.items() if name != "step"}


def saved(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir())


def forget_after(run: Path, step: int) -> None:
    """Leaves the run as if it had been killed after the checkpoint of this step."""
    for later in saved(run):
        if later > step:
            shutil.rmtree(run / "checkpoints" / str(later))
    (run / "newest_checkpoint.json").write_text(json.dumps({"newest": step}))


@pytest.mark.full
def test_what_two_processes_begin_one_ends(tmp_path, config, monkeypatch):
    """Kills: rows that two processes read, or none; a checkpoint or data cursor that needs as many processes again;
    a stop at a different step in each process; files and lines of two processes.

    The run is begun by two processes, stopped by a signal to one of them, and goes on in one process.
    """
    monkeypatch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)
    steps, run, truth, keep = 40, tmp_path / "run", tmp_path / "truth", ["--train.keep-checkpoints", "1000"]
    words = config(steps, 4)
    alone(words, truth, "--train.checkpoint-every", "0")

    with launched(tmp_path / "first", *words, *MESH, *keep, "--run-dir", str(run)) as processes:
        processes.wait_for((run / "checkpoints" / "4").exists)
        processes.kill(1, signal.SIGTERM)
        first = processes.ended()
    assert first.statuses == [0, 0]
    stopped = saved(run)[-1]
    assert stopped < steps
    assert f"stopped at step {stopped}, saved" in first.out[0]
    assert (first.out[1], *first.err) == ("", "", "")
    assert len(list(run.glob("events.out.tfevents.*"))) == 1

    alone(words, run, "--resume", "--train.checkpoint-every", "0")
    assert metrics(run) == pytest.approx(metrics(truth), rel=1e-6, abs=1e-6)


@pytest.mark.slow
def test_what_one_process_begins_two_end(tmp_path, config, monkeypatch):
    """Kills a checkpoint or a cursor of one process that two cannot read."""
    monkeypatch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)
    words, run, keep = config(12, 4), tmp_path / "run", ["--train.keep-checkpoints", "1000"]
    alone(words, run, *keep)
    expected = metrics(run)
    forget_after(run, 8)
    with launched(tmp_path / "last", *words, *MESH, *keep, "--run-dir", str(run), "--resume") as processes:
        last = processes.ended()
    assert last.statuses == [0, 0]
    assert "resumed at step 8" in last.out[0]
    assert metrics(run) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert saved(run)[-2:] == [8, 12]


@pytest.mark.slow
def test_a_killed_run_ends_soon_and_resumes_exactly(tmp_path, config):
    """Kills: processes that wait for a dead one, a resumed run that differs in a bit."""
    words = [*config(60, 5), *MESH]
    with launched(tmp_path / "truth", *words, "--run-dir", str(tmp_path / "whole")) as processes:
        assert processes.ended().statuses == [0, 0]
    for victim in (1, 0):
        run = tmp_path / f"run{victim}"
        with launched(tmp_path / f"killed{victim}", *words, "--run-dir", str(run)) as processes:
            processes.wait_for((run / "checkpoints" / "5").exists)
            processes.kill(victim, signal.SIGKILL)
            killed = processes.ended(within=60)
        assert killed.statuses[victim] == -signal.SIGKILL
        assert killed.statuses[1 - victim] in (1, -signal.SIGABRT)
        assert killed.err[1 - victim]
        with launched(tmp_path / f"again{victim}", *words, "--run-dir", str(run), "--resume") as processes:
            assert processes.ended().statuses == [0, 0]
        assert metrics(run) == metrics(tmp_path / "whole")


@pytest.mark.slow
def test_of_two_runs_in_one_directory_one_is_refused(tmp_path, config):
    """Kills: two runs in one directory, a run that is replaced by one that began with it and was slower, a refusal that
    only process 0 hears of."""
    words = [*config(4, 5), *MESH, "--run-dir", str(tmp_path / "run")]
    with launched(tmp_path / "a", *words) as a, launched(tmp_path / "b", *words) as b:
        ended = a.ended(), b.ended()
    assert sorted(each.statuses for each in ended) == [[0, 0], [2, 2]]
    refused = next(each for each in ended if each.statuses == [2, 2])
    assert refused.err[1] == ""
    assert refused.err[0].count("\n") == 1
    assert "is in use by" in refused.err[0] or "holds a run; continue it with --resume" in refused.err[0]
    assert len(metrics(tmp_path / "run")) == 4 * 4 + 4


ALONE = """
    import dataclasses
    import jax
    from jaxzoo.data.base import DataConfig
    from jaxzoo.tasks.recall_data import RecallData, RecallStream

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Failing(DataConfig):
        inner: DataConfig
        at: int

        def build(self, *, batch_size, valid_batch_size):
            if self.at < 0 and jax.process_index() == 1:
                raise ValueError("no such text here")
            return FailingData(self, batch_size, valid_batch_size)

    class FailingData(RecallData):
        def __init__(self, config, batch_size, valid_batch_size):
            super().__init__(config.inner, batch_size, valid_batch_size)
            self.at = config.at

        def train(self, rows=None):
            return FailingStream(self, rows)

    class FailingStream(RecallStream):
        def __next__(self):
            if self._step == self._data.at and jax.process_index() == 1:
                raise OSError("the disk of this machine is gone")
            return super().__next__()

    config = dataclasses.replace(config, data=Failing(inner=config.data, at=AT))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("at", "status"), [(-1, 2), (7, 1)])
def test_what_one_process_cannot_do_ends_all_with_its_line(tmp_path, config, at, status):
    """Kills: a process that fails before or amid the training while the others wait for it for ever, and a line that
    nobody or everybody prints."""
    words = config(60, 5)
    with open(words[1], "a") as file:
        file.write(textwrap.dedent(ALONE).replace("AT)", f"{at})"))
    with launched(tmp_path / "out", *words, *MESH, "--run-dir", str(tmp_path / "run")) as processes:
        ended = processes.ended()
    assert ended.statuses[1] == status
    if at < 0:
        assert ended.statuses[0] == status
        assert ended.err == ["error: process 1: no such text here\n", ""]
    else:
        assert ended.statuses[0] in (1, -signal.SIGABRT)
        assert ended.err[1].startswith("error: the disk of this machine is gone; stopped, complete checkpoints are")
        assert ended.err[1].count("\n") == 1
    assert RunDirectory(tmp_path / "run").holds_run == (at > 0)
