"""Every task through the command line: its examples reach the model, its answers the loss, its config the run."""

import json
import textwrap

import pytest

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import from_json
from jaxzoo.tasks.demos import DEMOS
from tests.train.conftest import CONFIG

OLDER = {"mqar", "ar", "nar", "mqnar", "selective_copy", "parity"}
"""Slow: other tests train on some of them, and on tasks like the others."""
TASK = "from jaxzoo.tasks.demos import DEMOS\ntask = DEMOS[{!r}](**{}).config()\n"
DATA = "data=RecallDataConfig(train=(Examples(task=task, n_examples=24),), valid=(Examples(task=task, n_examples=8),))"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in OLDER else name for name in DEMOS]
)
def test_every_task_trains(name, run, rows, tmp_path):
    """Kills: a batch that the trainer cannot take, with answers at one token or at all; a task whose run nobody can
    read."""
    fields = {"cumulative": True} if name == "majority" else {}
    file = tmp_path / f"{name}.py"
    file.write_text(TASK.format(name, fields) + textwrap.dedent(CONFIG).replace("data=DATA", DATA))
    flags = "--model.max-length 32 --train.steps 2 --train.eval-every 0 --train.checkpoint-every 0"
    assert run(file, "r", *flags.split()) == 0
    (last,) = [row for row in rows("r") if "valid/loss" in row]
    assert last["step"] == 2
    assert 0 <= last["valid/accuracy"] <= 1
    stored = from_json(json.loads((tmp_path / "r" / "config.json").read_text()), ExperimentConfig)
    (examples,) = stored.data.train
    assert examples.task == DEMOS[name](**fields).config()
