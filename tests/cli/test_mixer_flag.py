"""The flag `--model.mixer NAME`. Kills: a registered mixer that the flag does not accept."""

import shlex
from pathlib import Path

import pytest

from jaxzoo.cli.config_file import load_config
from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.train import main
from jaxzoo.mixers import MIXERS, RetNetConfig
from jaxzoo.mixers.names import ALIASES
from jaxzoo.models.describe import describe
from tests.cli.conftest import parse_command

CONFIGS = Path(__file__).parents[2] / "configs" / "mqar"
ZOO = CONFIGS / "zoo.py"
SMALL = (
    "--model.d-model 16 --model.vocab-size 64 --model.max-length 32 --train.steps 2 --train.batch-size 8 "
    "--train.eval-every 0 --data.train.0.task.vocab-size 64 --data.train.0.task.length 32 --data.train.0.n-examples 16 "
    "--data.valid.0.task.vocab-size 64 --data.valid.0.task.length 32 --data.valid.0.n-examples 8"
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("ret_net", "base_conv") else pytest.mark.full) for name in MIXERS],
)
def test_every_registered_name_gives_its_mixer(name):
    """Kills: a list of names next to the registry, a default that does not fit the file's model."""
    model = parse_command(["--config", str(ZOO), "--model.mixer", name])[1].model
    assert [type(mixer) for mixer in model.layers].index(MIXERS[name]) == (0 if name == "base_conv" else 1)
    assert MIXERS[name].__name__.removesuffix("Config") in describe(model)


def test_the_mixer_s_fields_are_flags(capsys):
    """Kills: a chosen mixer whose fields cannot be set, or do not show in the help."""
    flags = ["--config", str(ZOO), "--model.mixer", "RET-NET", "--model.pattern.1.value-width", "32"]
    mixer = parse_command(flags)[1].model.pattern[1]
    assert isinstance(mixer, RetNetConfig)
    assert mixer.value_width == 32
    assert main([*flags, "--help", "model"]) == 0
    assert "--model.pattern.1.value-width" in capsys.readouterr().out
    assert main([*flags, "--help"]) == 0
    assert "--model.mixer NAME" in capsys.readouterr().out


def test_aliases(capsys):
    """Kills: an alias of the field that is unknown or hides what was chosen; Based taken for a mixer."""
    assert {name for name in ALIASES.values() if name not in MIXERS} == set()
    mixer = parse_command(["--config", str(ZOO), "--model.mixer", "KDA"])[1].model.pattern[1]
    assert type(mixer) is MIXERS["kimi_delta_attention"]
    assert "mixer: kimi_delta_attention (KDA)" in capsys.readouterr().err
    with pytest.raises(ValueError, match="Based is a hybrid of Taylor linear attention"):
        parse_command(["--config", str(ZOO), "--model.mixer", "based"])


def test_mistakes_are_one_line(capsys):
    """Kills: a traceback for a typo, another mixer in place of the misspelt one, a choice that is dropped."""
    for file, flags, message in (
        ("zoo", "--model.mixer retmet", r"--model\.mixer: unknown mixer 'retmet'; did you mean 'ret_net'\?$"),
        ("zoo", "--model.mixer zzz", r"unknown mixer 'zzz'; there are attention, base_conv, "),
        ("zoo", f"--model.mixer ret_netz{'z' * 100_000}", r"^.{40,200}there are attention, base_conv, .{100,2000}$"),
        ("zoo", "--model.mixr ret_net", r"unknown option --model\.mixr; did you mean --model\.mixer\?$"),
        ("zoo", "--model.mixer", r"Missing value for argument '--model\.mixer'"),
        ("zoo", "--model.mixer ret_net --model.pattern.1.feature-dim 3", r"unknown option --model\.pattern\.1\.featur"),
        ("based", "--model.mixer ret_net", r"based\.py leaves no mixer open: its `config` must be a function with"),
    ):
        argv = ["--config", str(CONFIGS / f"{file}.py"), *shlex.split(flags)]
        with pytest.raises(UsageError, match=message):
            parse_command(argv)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_mixer_of_the_file_s_own_may_be_named(tmp_path, monkeypatch):
    """Kills: names that are resolved before the file has registered its mixers."""
    file = tmp_path / "own.py"
    own = "from jaxzoo.mixers import MIXERS, RetNetConfig\nMIXERS['my_own'] = lambda: RetNetConfig(gamma=0.5)\n"
    file.write_text(own + ZOO.read_text())
    monkeypatch.setattr("jaxzoo.mixers.MIXERS", MIXERS.copy())
    mixer = load_config(file, mixer="my_own").model.pattern[1]
    assert isinstance(mixer, RetNetConfig)
    assert mixer.gamma == 0.5
