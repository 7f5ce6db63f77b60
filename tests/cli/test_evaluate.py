"""`jaxzoo evaluate`. Kills: scores of another checkpoint or of other examples."""

import json
import textwrap

import pytest

from jaxzoo.cli.evaluate import main
from jaxzoo.cli.train import main as train
from tests.cli.test_generate import files_of
from tests.train.conftest import use_one_device

FILE = """
    from jaxzoo.train.config import RunConfig, OptimizerConfig, TrainConfig
    from jaxzoo.mixers import AttentionConfig
    from jaxzoo.models import LanguageModelConfig
    from jaxzoo.tasks import ngram_recall
    from jaxzoo.tasks.recall_data import Examples, RecallDataConfig

    def examples(length, n):
        return Examples(task=ngram_recall.mqnar(length, 2, vocab_size=32), n_examples=n)

    config = RunConfig(
        model=LanguageModelConfig(
            pattern=(AttentionConfig(n_heads=2, positions="rotary"),), d_model=8, n_layers=1, vocab_size=32,
            max_length=40, init_std=0.5, mlp="none",
        ),
        data=RecallDataConfig(train=(examples(24, 64),), valid=(examples(24, 20), examples(32, 20))),
        optimizer=OptimizerConfig(schedule="constant"),
        train=TrainConfig(steps=3, batch_size=8, valid_batch_size=8, eval_every=0, checkpoint_every=2),
    )
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a task that no module of the trainer imports, with checkpoints of steps 2 and 3."""
    directory = tmp_path_factory.mktemp("recall")
    (directory / "file.py").write_text(textwrap.dedent(FILE))
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        patch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)
        assert train(["--config", str(directory / "file.py"), "--run-dir", str(directory / "run")]) == 0
    return directory / "run"


@pytest.fixture
def metrics(trained, tmp_path):
    """Function that runs the command and returns its metrics: `metrics(*flags)`."""

    def metrics(*flags):
        assert main(["--run", str(trained), "--out", str(tmp_path / "out.json"), *flags]) == 0
        return json.loads((tmp_path / "out.json").read_text())["metrics"]

    return metrics


@pytest.mark.full
def test_the_run_s_own_sets_give_the_run_s_last_validation(trained, metrics, capsys):
    """Kills: another checkpoint, other examples, a table without the slices, a directory that is written to."""
    before = files_of(trained)
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics() == {name: value for name, value in last.items() if name.startswith("valid/")}
    captured = capsys.readouterr()
    assert "checkpoint 3" in captured.err
    for name in ("loss", "accuracy/length=24", "accuracy/length=32", "accuracy/pairs=2"):
        assert name in captured.out
    assert files_of(trained) == before
    assert metrics("--checkpoint", "2")["valid/loss"] != last["valid/loss"]


def test_one_line_for_a_mistake(trained, capsys):
    """Kills: a traceback, or a table of another model than was trained."""
    for flags, message in [
        (["--run", "/no/such"], "/no/such does not exist; it must be the directory of a run"),
        ([], "--run DIR is required"),
        (["--run", "RUN", "--run", "RUN"], "--run takes one run; jaxzoo compare"),
        (["--run", "RUN", "--model.n-layrs", "2"], "unknown option --model.n-layrs; did you mean --model.n-layers?"),
        (["--run", "RUN", "--model.n-layers", "2"], "variable stacks/0/blocks/0/mixer/"),
        (["--run", "RUN", "--data.valid.0.task.length", "64"], "max_length=40 must be at least the 64 tokens"),
        (["--run", "RUN", "--out", "/no/such/file"], "--out /no/such/file: its directory does not exist"),
        (["--run", "RUN", "--out", "/tmp"], "--out /tmp is a directory; name a file"),
        (["--run", "RUN", "--limit", "2"], "--limit belongs to --tasks"),
        (["--run", "RUN", "--slices", "recall", "--tasks", "fda"], "--slices and --tasks are two commands"),
        (["--run", "RUN", "--checkpoint", "1"], "checkpoint 1 must be one of 2, 3"),
        (["--run", "RUN", "--checkpoint", "x"], "--checkpoint: 'x' must be INT or {best}"),
    ]:
        assert main([str(trained) if flag == "RUN" else flag for flag in flags]) == 2
        captured = capsys.readouterr()
        (line,) = captured.err.splitlines()
        assert message in line
        assert captured.out == ""
