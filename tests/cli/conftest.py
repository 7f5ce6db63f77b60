"""Fixtures for commands: those of the trainer, and a language model trained on a mesh of 8 devices."""

import json
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxzoo.cli.config_file import read_config
from jaxzoo.cli.flags import parse_known
from jaxzoo.cli.train import TrainCommand, main as train
from tests.train.conftest import (  # noqa: F401 fixtures
    CONFIG,
    _one_device,
    _pictures,
    compilation,
    mixture_file,
    mqar_file,
    own_data_file,
    rows,
    run,
    text_file,
    tiny_config,
)


def parse_command(words):
    """Parses the options of `jaxzoo.train`; returns them and the config."""
    command, flags = parse_known(TrainCommand, words, prog="train")
    return command, read_config(command, flags, prog="train")


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory, compilation: dict) -> Path:  # noqa: F811
    """Run directory with checkpoints of steps 3 and 4; read-only."""
    directory = tmp_path_factory.mktemp("trained")
    corpus = directory / "corpus"
    corpus.mkdir()
    for i in range(4):
        (corpus / f"{i}.txt").write_text(f"{i} never odd or even, {i} times a word; " * (5 + i))
    file = directory / "text.py"
    data = f"data=dataclasses.replace(text, path={str(corpus)!r})"
    file.write_text(textwrap.dedent(CONFIG).replace("data=DATA", data))
    flags = "--train.steps 4 --train.eval-every 0 --model.init-std 0.5"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)
        assert train(["--config", str(file), "--run-dir", str(directory / "run"), *flags.split()]) == 0
    return directory / "run"


@pytest.fixture
def run_copy(trained_run: Path, tmp_path: Path) -> Callable[..., Path]:
    """Function that copies the run and replaces fields of its model config: `run_copy(field=value, ...)`."""

    def copy(**fields: object) -> Path:
        shutil.copytree(trained_run, tmp_path / "copy")
        file = tmp_path / "copy" / "config.json"
        config = json.loads(file.read_text())
        config["model"].update(fields)
        file.write_text(json.dumps(config))
        return tmp_path / "copy"

    return copy
