"""Config files of users. Kills: a class or module taken from another config file."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from jaxzoo.cli.config_file import load_config
from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.user_files import import_file, import_files
from jaxzoo.config.config_io import from_json, to_json
from jaxzoo.train.config import RunConfig
from tests.cli.conftest import parse_command

REPOSITORY = Path(__file__).parents[2]


def test_failing_config_file_names_its_line(tmp_path):
    """Kills: a traceback through importlib, a message without the place."""
    file = tmp_path / "broken.py"
    (tmp_path / "broken_beside.py").write_text("\n\nx = = 1\n")
    for text, message in (
        ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError: division by zero$"),
        ("x = = 1\n", "line 1: SyntaxError: invalid syntax$"),
        ("def config():\n    return 1 + ''\n", "line 2: TypeError: unsupported operand"),
        ("def config():\n    return half()\n\n\ndef half():\n    return 1 / 0\n", "line 6: ZeroDivisionError"),
        ("from jaxzoo.mixers import NoMixer\n", "line 1: ImportError: cannot import name 'NoMixer'"),
        ("configs = [1]\n", "`configs` must be a dict of configurations by name$"),
        ("cnfig = 1\n", "must define `config`, a RunConfig"),
        (
            "from jaxzoo.train.config import OptimizerConfig\n\nconfig = OptimizerConfig(b1=2)\n",
            r"line 3: ValueError: OptimizerConfig\.b1=2 must be in",
        ),
        ("\nraise SystemExit(3)\n", "line 2: SystemExit: 3$"),
        ("def config():\n    raise KeyboardInterrupt\n", "line 2: KeyboardInterrupt$"),
        ("import broken_beside\n", "line 1: SyntaxError: "),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=message):
            load_config(file)


OWN = """
    from __future__ import annotations

    import dataclasses
    from jaxzoo.train.config import RunConfig
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

        return RunConfig(
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
    """Kills: dataclasses and type hints that fail in a config file; a module next to it that is not found, or found
    before installed ones; a `__pycache__` next to it; other classes at a second load."""
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [*before])
    file = tmp_path / "own.py"
    file.write_text(textwrap.dedent(OWN))
    (tmp_path / "beside_own.py").write_text(textwrap.dedent(BESIDE))
    config = load_config(file)
    assert sys.path == [*before, str(tmp_path)]
    assert [type(mixer).__name__ for mixer in config.model.pattern] == ["OwnConvConfig", "BesideConfig"]
    stored = json.loads(json.dumps(to_json(config)))
    assert from_json(stored, RunConfig) == config == load_config(file)
    assert not list(tmp_path.glob("__pycache__/own*"))
    flags = ["--config", str(file), "--model.pattern.0.taps", "5", "6", "7"]
    assert parse_command(flags)[1].model.pattern[0].taps == (5, 6, 7)
    file.write_text(textwrap.dedent(OWN).replace("(3, 4)", "(5, 6)"))
    assert load_config(file).model.pattern[0].taps == (5, 6)


def test_two_config_files_do_not_share_what_each_defines(tmp_path, monkeypatch):
    """Kills: a class or module of one config file that is used for another one."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    files = {name: tmp_path / name for name in ("a/own.py", "b/own.py", "a/first.py", "b/second.py", "b/third.py")}
    for name, file in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text("import beside_two\n" if "own" not in name else "class OwnConfig:\n    pass\n")
        (file.parent / "beside_two.py").touch()
    with pytest.raises(UsageError, match=r"a/own\.py and .*b/own\.py: both define own:OwnConfig, and a run would"):
        import_files([files["a/own.py"], files["a/own.py"], files["b/own.py"]])
    with pytest.raises(UsageError, match=r"b/second\.py: its module beside_two would be .*/a/beside_two\.py; take one"):
        import_files([files["a/first.py"], files["b/second.py"]])
    sys.modules.pop("beside_two")
    import_files([files["b/second.py"], files["b/third.py"]])
    sys.modules.pop("beside_two")


def test_every_config_of_the_repository_loads():
    """Kills: a config that uses an old interface, and one that is missing from the list."""
    listed = (REPOSITORY / "configs" / "README.md").read_text()
    files = sorted((REPOSITORY / "configs").rglob("*.py"))
    assert len(files) > 10
    for file in files:
        if "\nconfigs = " not in file.read_text():  # those with several: tests/configs
            load_config(file)
    assert [file for file in files if f"`{file.relative_to(REPOSITORY)}`" not in listed] == []


SEVERAL = """
    import dataclasses
    from jaxzoo.train.config import RunConfig
    from jaxzoo.mixers import RetNetConfig
    from jaxzoo.models import LanguageModelConfig
    from jaxzoo.tasks.presets import based_figure2

    plain = RunConfig(model=LanguageModelConfig(pattern=(RetNetConfig(),)), data=based_figure2())
    configs = {
        "ret_net": lambda mixer=RetNetConfig(): dataclasses.replace(
            plain, model=dataclasses.replace(plain.model, pattern=(mixer,))
        ),
        "ret_net_deep": dataclasses.replace(plain, model=dataclasses.replace(plain.model, n_layers=8)),
    }
"""


def test_a_file_of_several_configurations(tmp_path, capsys):
    """Kills: a configuration name that is ignored or guessed, two names that share a run directory."""
    file = tmp_path / "configs" / "several.py"
    file.parent.mkdir()
    file.write_text(textwrap.dedent(SEVERAL))
    flags = ["--config", str(file), "--train.steps", "7"]
    command, deep = parse_command([*flags, "--name", "ret-net-deep"])
    assert (deep.model.n_layers, deep.train.steps) == (8, 7)
    assert command.place == Path("runs/ret_net_deep")
    command, hyena = parse_command([*flags, "--name", "ret_net", "--model.mixer", "hyena"])
    assert type(hyena.model.pattern[0]).__name__ == "HyenaConfig"
    assert command.place == Path("runs/ret_net-hyena")
    own = str(REPOSITORY / "configs" / "mqar" / "based.py")
    for words, message in (
        (flags, "several.py has several configurations; choose one by --name: ret_net, ret_net_deep"),
        ([*flags, "--name", "ret_net_dep"], "unknown configuration 'ret_net_dep'; did you mean 'ret_net_deep'"),
        ([*flags, "--name", "x"], "unknown configuration 'x'; there are ret_net, ret_net_deep"),
        ([*flags, "--name", "ret_net_deep", "--model.mixer", "hyena"], "leaves no mixer open"),
        ([*flags, "--nam", "ret_net"], "several configurations|unknown option --nam; did you mean --name"),
        (["--config", own, "--name", "based"], "--name based: config file .*based.py has one configuration, without"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_command(words)


def test_a_file_of_a_package_imports_its_siblings_from_anywhere(tmp_path, monkeypatch):
    """Kills: files of `experiments/` that load only from the folder above them."""
    package = tmp_path / "house_of_figures"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("WIDTH = 24\n")
    (package / "figure.py").write_text(
        "from house_of_figures.sizes import WIDTH\n"
        "from jaxzoo.sweep import Experiment\n"
        "experiment = Experiment(title=str(WIDTH), about='', scales={}, claims=(), made_up=None, draw=None)\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert import_file(package / "figure.py").experiment.title == "24"
