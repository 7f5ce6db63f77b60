"""Config files: files of the user's own, with what they define and import."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from jaxzoo.cli.config_file import load_config, load_experiment
from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.train import parse_command
from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import from_json, to_json

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError: division by zero$"),
        ("x = = 1\n", "line 1: SyntaxError: invalid syntax$"),
        ("def config():\n    return 1 + ''\n", "line 2: TypeError: unsupported operand"),
        ("from jaxzoo.mixers import NoMixer\n", "line 1: ImportError: cannot import name 'NoMixer'"),
        ("cnfig = 1\n", "must define `config`, an ExperimentConfig"),
        (
            "from jaxzoo.config import OptimizerConfig\n\nconfig = OptimizerConfig(b1=2)\n",
            r"line 3: ValueError: OptimizerConfig\.b1=2 must be in",
        ),
        ("\nraise SystemExit(3)\n", "line 2: SystemExit: 3$"),
        ("def config():\n    raise KeyboardInterrupt\n", "line 2: KeyboardInterrupt$"),
        ("import broken_beside\n", "line 1: SyntaxError: "),
    ],
)
def test_failing_config_file_names_its_line(tmp_path, text, message):
    """Kills: a traceback through importlib, a message without the place."""
    file = tmp_path / "broken.py"
    file.write_text(text)
    (tmp_path / "broken_beside.py").write_text("\n\nx = = 1\n")
    with pytest.raises(UsageError, match=message):
        load_config(file)


OWN = """
    from __future__ import annotations

    import dataclasses
    from jaxzoo.config import ExperimentConfig
    from jaxzoo.mixers import BaseConvConfig, GatedShortConvConfig
    from jaxzoo.models import LanguageModelConfig
    from jaxzoo.tasks.mqar import MQARConfig
    from jaxzoo.tasks.recall_data import Examples, RecallDataConfig

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class OwnConvConfig(GatedShortConvConfig):
        taps: tuple[int, ...] = (2,)
        '''A meaning.'''

    def config():
        from beside_own import BesideConfig

        examples = Examples(task=MQARConfig(vocab_size=40, length=16, n_pairs=2), n_examples=64)

        return ExperimentConfig(
            model=LanguageModelConfig(pattern=(OwnConvConfig(taps=(3, 4)), BesideConfig()), d_model=8, vocab_size=40),
            data=RecallDataConfig(train=[examples], valid=[examples]),
        )
"""

BESIDE = """
    import dataclasses
    from jaxzoo.mixers import BaseConvConfig

    class BesideConfig(BaseConvConfig):
        pass
"""


def test_a_config_file_brings_its_own_classes(tmp_path, monkeypatch):
    """Kills: a file that is no module, whose dataclasses and type hints fail; a module beside it that is not found,
    or found before the installed ones; a __pycache__ beside it; classes that differ between two loads."""
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [*before])
    file = tmp_path / "own.py"
    file.write_text(textwrap.dedent(OWN))
    (tmp_path / "beside_own.py").write_text(textwrap.dedent(BESIDE))
    config = load_config(file)
    assert sys.path == [*before, str(tmp_path)]
    assert [type(mixer).__name__ for mixer in config.model.pattern] == ["OwnConvConfig", "BesideConfig"]
    stored = json.loads(json.dumps(to_json(config)))
    assert from_json(stored, ExperimentConfig) == config == load_config(file)
    assert not list(tmp_path.glob("__pycache__/own*"))
    flags = ["--config", str(file), "--model.pattern.0.taps", "5", "6", "7"]
    assert parse_command(flags).config.model.pattern[0].taps == (5, 6, 7)
    file.write_text(textwrap.dedent(OWN).replace("(3, 4)", "(5, 6)"))
    assert load_config(file).model.pattern[0].taps == (5, 6)


@pytest.mark.parametrize("file", sorted((REPOSITORY / "configs").rglob("*.py")), ids=lambda file: file.stem)
def test_every_config_of_the_repository_loads(file):
    """Kills: a config that an interface has left behind, and one that the list does not name."""
    load_config(file)
    assert f"`{file.relative_to(REPOSITORY)}`" in (REPOSITORY / "configs" / "README.md").read_text()


def test_a_file_of_a_package_imports_its_siblings_from_anywhere(tmp_path, monkeypatch):
    """Kills: files of `experiments/` that load in the folder above them alone."""
    package = tmp_path / "house_of_figures"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("WIDTH = 24\n")
    (package / "figure.py").write_text(
        "from house_of_figures.sizes import WIDTH\n"
        "from jaxzoo.sweep import Experiment\n"
        "experiment = Experiment(title=str(WIDTH), about='', scales={}, claims=(), draw=None)\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert load_experiment(package / "figure.py").title == "24"
