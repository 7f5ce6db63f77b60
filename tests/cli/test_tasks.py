"""`python -m jaxzoo.tasks`: what it prints, what it refuses."""

import typing

import numpy as np
import pytest

from jaxzoo.cli.tasks import Command, main
from jaxzoo.tasks import mqar


def test_prints_the_examples(capsys):
    """Kills a printout of other examples than the generator's, and columns that do not line up."""
    flags = "--task mqar --length 20 --n-pairs 3 --variant release --fillers any --show 2 --seed 5 --split test"
    assert main(flags.split()) == 0
    out = capsys.readouterr().out
    task = mqar.MQAR(mqar.release(20, 3, vocab_size=64, fillers="any"), batch_size=2)
    tokens, targets = (np.asarray(part) for part in task.batch(5, 0, "test"))
    rows = {name: [line for line in out.splitlines() if line.startswith(name)] for name in ("token", "target")}
    printed = [cell for line in rows["token"] for cell in line.split()[1:]]
    labels = [cell for line in rows["target"] for cell in line.split()[1:]]
    assert printed == [str(token) for token in tokens.ravel()]
    assert labels == ["." if label == -100 else str(label) for label in targets.ravel()]
    assert {len(a) - len(b) for a, b in zip(rows["token"], rows["target"], strict=True)} == {0}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--n-pairs 9", "MQARConfig.length="),
        ("--show 0", "Command.show=0 must be positive"),
        ("--task copying", "invalid choice 'copying'"),
        ("--pairs 2", "unknown option --pairs; did you mean --n-pairs?"),
    ],
)
def test_refuses_in_one_line(capsys, flags, message):
    """Kills a traceback or a box for values that fit no task."""
    assert main(flags.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_choices_are_the_task_s():
    """Kills a choice that only one of the two knows; the command line is read without JAX, and so without the task."""
    declared = typing.get_type_hints(Command)
    assert (declared["split"], declared["fillers"]) == (mqar.Split, mqar.Fillers)
