"""Mixers and tasks of other packages. Kills: an entry point that is not read."""

import re
import sys
from pathlib import Path

import pytest

from jaxzoo.cli.evaluate import main as evaluate
from jaxzoo.cli.tasks import main as tasks
from jaxzoo.cli.train import main as train
from tests.cli.test_mixer_flag import SMALL, ZOO

PAGE = (Path(__file__).parents[2] / "docs" / "add_a_mixer.md").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Current folder with the page's mixer and a task."""
    code, task = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "moving_average.py").write_text(code)
    (tmp_path / "echo.py").write_text(task)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)
    return tmp_path


@pytest.mark.slow
def test_a_mixer_of_an_installed_package_is_known_by_name(folder, monkeypatch, capsys):
    """Kills: entry points that are not read, and runs of installed classes that need --config."""
    (folder / "moving_average.py").rename(folder / "averages_of_mine.py")
    info = folder / "averages_of_mine-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: averages-of-mine\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[jaxzoo.mixers]\nmine = averages_of_mine:MovingAverageConfig\n")
    monkeypatch.syspath_prepend(str(folder))
    flags = ["--config", str(ZOO), "--model.mixer", "mine", "--run-dir", "run"]
    assert train([*flags, *SMALL.split()]) == 0, capsys.readouterr().err
    assert "averages_of_mine:MovingAverageConfig" in (folder / "run/config.json").read_text()
    assert evaluate(["--run", "run"]) == 0
    sys.modules.pop("averages_of_mine")


@pytest.mark.full
def test_a_task_of_a_file_shows_examples(folder, capsys):
    """Kills: a task that must stand in the package, flags of another task."""
    assert tasks(["--task", "echo.py:Echo", "--show", "1", "--length", "4"]) == 0
    out = capsys.readouterr().out
    assert "Repeat the first token at the end;" in out
    assert re.search(r"position +0 +1 +2 +3\n", out)
