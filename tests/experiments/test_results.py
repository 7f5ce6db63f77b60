"""The results that are kept: their tables and verdicts are those of their numbers, whoever changes a claim."""

import shutil
import sys
from pathlib import Path

import pytest

from jaxzoo.cli.sweep_report import report
from jaxzoo.screen import Screen

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
