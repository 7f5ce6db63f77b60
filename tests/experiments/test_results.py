"""Kept results. Kills: a verdict or table that its numbers do not give."""

import json
from pathlib import Path

import pytest

from jaxzoo.cli.sweep_options import open_sweep
from jaxzoo.sweep.directory import SweepDirectory
from jaxzoo.sweep.report_files import judged
from jaxzoo.sweep.results import Results
from jaxzoo.sweep.table import markdown

ROOT = Path(__file__).parents[2]
HOME = ROOT / "experiments/results"
KEPT = sorted(str(file.parent.relative_to(HOME)) for file in HOME.glob("**/sweep.json"))


def opened(name):
    """The sweep of kept results."""
    about = SweepDirectory(HOME / name).read_about()
    return open_sweep(ROOT / about.experiment, about.scale, HOME / name), about


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_the_figure_can_be_drawn_again(name):
    """Kills: kept results whose figure cannot be drawn any more."""
    sweep, _ = opened(name)
    assert any(panel.lines or panel.collections for panel in sweep.experiment.draw(Results(sweep.rows())).axes)
    for picture in ("figure.png", "figure.svg"):
        assert (HOME / name / picture).stat().st_size > 5_000


@pytest.mark.full
@pytest.mark.parametrize("name", KEPT)
def test_every_figure_of_recall_shows_the_guessing_line(name):
    """Kills: a curve at the height of guessing that looks like one of a model that has learned."""
    sweep, _ = opened(name)
    rows = sweep.rows()
    if not any("valid/accuracy" in row.get("guess", {}) for row in rows):
        return
    lines = [line for panel in sweep.experiment.draw(Results(rows)).axes for line in panel.lines]
    assert any(str(line.get_label()).startswith(("guessing", "a constant answer")) for line in lines)


@pytest.mark.parametrize(
    "name", [name if name == "cat_figure4" else pytest.param(name, marks=pytest.mark.full) for name in KEPT]
)
def test_verdicts_and_table_are_those_of_the_numbers(name):
    """Kills: a field of a config, or a default, by which no kept result is that of its experiment any more; a claim, a
    remark or a scale that was changed without the verdicts that are shown."""
    sweep, about = opened(name)
    assert about == sweep.about(about.experiment, about.scale)
    rows = [json.loads(line) for line in (HOME / name / "results.jsonl").read_text().splitlines()]
    points = [(point, task.id) for point, task in sweep.points]
    made = [(row["point"], row["id"]) for row in rows]
    assert made == [found for found in points if found in made]
    assert made
    outcome = judged(sweep.experiment, sweep.scale, about, rows)
    assert markdown(outcome) == (HOME / name / "table.md").read_text()
    kept = json.loads((HOME / name / "claims.json").read_text())
    assert kept == [verdict._asdict() for verdict in outcome.verdicts]
