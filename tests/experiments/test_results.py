"""The results that are kept: their tables and verdicts are those of their numbers, whoever changes a claim."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from jaxzoo.cli.config_file import load_experiment
from jaxzoo.cli.sweep_report import report
from jaxzoo.screen import Screen
from jaxzoo.sweep.task import Task

ROOT = Path(__file__).parents[2]
KEPT = sorted(file.parent.name for file in (ROOT / "experiments/results").glob("*/sweep.json"))


def test_there_are_some():
    """Kills: a search that finds none."""
    assert "cat_figure4" in KEPT


@pytest.mark.parametrize("name", KEPT)
def test_verdicts_and_table_are_those_of_the_numbers(name, tmp_path, monkeypatch):
    """Kills: a claim, a remark or a scale that was changed behind the verdicts that are shown."""
    monkeypatch.chdir(ROOT)
    kept, again = ROOT / "experiments/results" / name, tmp_path / name
    again.mkdir()
    for file in ("sweep.json", "results.jsonl"):
        shutil.copyfile(kept / file, again / file)
    report([str(again)], None, Screen(sys.stdout))
    for file in ("claims.json", "table.md"):
        assert (again / file).read_text() == (kept / file).read_text()
    for picture in ("figure.png", "figure.svg"):
        assert (kept / picture).stat().st_size > 5_000


@pytest.mark.parametrize("name", KEPT)
def test_runs_are_known_by_the_same_names(name):
    """Kills: a field of a config, or a default, by which no kept result is that of its experiment any more."""
    kept = ROOT / "experiments/results" / name
    said = json.loads((kept / "sweep.json").read_text())
    scale = load_experiment(ROOT / "experiments" / f"{name}.py").scales[said["scale"]]()
    rows = [json.loads(line) for line in (kept / "results.jsonl").read_text().splitlines()]
    assert {row["id"] for row in rows} == {Task.of(scale, point).id for point in scale.points}
