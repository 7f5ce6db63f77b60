"""Flags of the command line. Kills: an override that is dropped or resets other fields."""

import dataclasses
import importlib
from pathlib import Path

import pytest

from jaxzoo.cli.commands import COMMANDS
from jaxzoo.cli.config_file import load_config
from jaxzoo.cli.flags import UsageError, flags_of
from jaxzoo.cli.train import main
from jaxzoo.tasks.recall_data import Examples
from tests.cli.conftest import parse_command


def test_flags_reach_every_depth(mqar_file):
    """Kills: an override that is dropped, or that resets its neighbours to the class's defaults."""
    flags = "--model.pattern.0.n-taps 5 --model.d_model 12 --optimizer.schedule linear"
    flags += " --data.train.0.task.n-pairs 3 --data.train.0.n-examples 32"
    command, config = parse_command(["--config", str(mqar_file), *flags.split(), "--resume"])
    before = load_config(mqar_file)
    assert (command.resume, command.overwrite, command.print_model) == (True, False, False)
    assert command.place == Path("runs/tiny-mqar")
    (mixer,) = before.model.pattern
    assert config.model.pattern == (dataclasses.replace(mixer, n_taps=5),)
    (examples,) = before.data.train
    task = dataclasses.replace(examples.task, n_pairs=3)
    assert config.data == dataclasses.replace(before.data, train=(Examples(task=task, n_examples=32),))
    assert config.optimizer == dataclasses.replace(before.optimizer, schedule="linear")
    assert (config.model.d_model, config.model.mlp_width) == (12, 8)
    assert config.train == before.train


def test_every_field_is_a_flag_of_the_help(mqar_file, capsys):
    """Kills: fields that the help hides, or shows without their meaning and value."""
    assert main(["--config", str(mqar_file), "--help", "all"]) == 0
    out = capsys.readouterr().out
    config = load_config(mqar_file)
    assert [flag for flag in flags_of(config) if flag not in out] == []
    for text in ("Peak learning rate.", "(default: 0.01)", "Key-value pairs in an example"):
        assert text in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command, capsys):
    """Kills: an error after the help, for the absence of an option that is required."""
    module = importlib.import_module(f"jaxzoo.cli.{command.replace('-', '_')}")
    assert module.main(["--help"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"usage: jaxzoo {command} ")
    assert shown.err == ""


def test_help_begins_with_groups(mqar_file, capsys, monkeypatch):
    """Kills: hundreds of fields where one group was asked for, two usages, lines that break in the middle at 80."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for topic in ("", "model", "optimizer"):
        assert main(["--config", str(mqar_file), "--help", *topic.split()]) == 0
        shown[topic] = capsys.readouterr().out
        assert max(map(len, shown[topic].splitlines())) <= 80
    for text in ("--run-dir", "--overwrite", "\n  model (", "\n  optimizer ("):
        assert text in shown[""]
    assert shown[""].count("usage:") == 1
    assert "--model.n-layers" not in shown[""]
    assert "--optimizer" not in shown["model"]
    assert "\n      Number of layers; layer i has mixer i modulo the pattern's length.\n" in shown["model"]
    for words, line in (
        (["--config", str(mqar_file), "--help", "modle"], "--help modle: unknown group 'modle'; did you mean 'model'?"),
        (["--help", "model"], "--help model describes fields of a config; name one by --config"),
    ):
        assert main(words) == 2
        assert capsys.readouterr().err == f"error: {line}\n"


def test_mistakes_are_one_line(mqar_file, capsys):
    """Kills: tracebacks, boxes, help texts and silence in place of the one line that helps."""
    for flags, message in (
        ("--model.d-modle 4", r"^unknown option --model\.d-modle; did you mean --model\.d-model\?$"),
        (
            "--data.train.0.task.n-pair 4",
            r"^unknown option --data\.train.*did you mean --data\.train\.0\.task\.n-pairs\?$",
        ),
        ("--model.d_modle=4", r"^unknown option --model\.d_modle; did you mean --model\.d-model\?$"),
        ("--data.path x", r"^unknown option --data\.path"),
        ("--lr 1", r"^unknown option --lr; did you mean --optimizer\.learning-rate\?$"),
        ("--d_model=4", r"^unknown option --d_model; did you mean --model\.d-model\?$"),
        ("--resum", "^unknown option --resum"),
        ("stray", "^unexpected argument 'stray'"),
        ("--model.d-model wide", r"^--model\.d-model: invalid literal for int.*'wide'$"),
        ("--train.steps", r"^Missing value for argument '--train\.steps'"),
        ("--optimizer.schedule cosin", r"^invalid choice 'cosin' for argument '--optimizer\.schedule'"),
        ("--optimizer.learning-rate -1", r"^OptimizerConfig\.learning_rate=-1\.0 must be positive$"),
        (
            "--model.pattern.0.n-taps 0",
            r"^BaseConvConfig\.n_taps=0 must be positive",
        ),
        ("--data.train.0.task.n-pairs 5", r"^MQARConfig\.length=16 must be at least 4 n_pairs=20; "),
        ("--data.valid.0.task.vocab-size 16", r"^MQARConfig\.vocab_size=16 must exceed length=16; "),
        ("--mesh.data -2", r"^MeshConfig\.data=-2 must be positive, or -1"),
    ):
        with pytest.raises(UsageError, match=message) as raised:
            parse_command(["--config", str(mqar_file), *flags.split()])
        assert "\n" not in str(raised.value)
    assert capsys.readouterr() == ("", "")
