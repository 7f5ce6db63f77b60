"""Every claim of every experiment: rows that must hold and rows that must fail, and the verdicts that are kept."""

import importlib
import json
from pathlib import Path

import pytest

from jaxzoo.sweep.claims import MARGIN, changed, judge
from jaxzoo.sweep.results import Results

ROOT = Path(__file__).parents[2]
NAMES = [
    file.stem for file in sorted((ROOT / "experiments").glob("*.py")) if "experiment = Experiment(" in file.read_text()
]
KEPT = sorted((ROOT / "experiments/results").glob("**/claims.json"))


def experiment(name):
    """The experiment of a file."""
    return importlib.import_module(f"experiments.{name}").experiment


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "zoology_figure2" else pytest.mark.full) for name in NAMES]
)
def test_made_up_rows_hold_and_their_changes_break(name):
    """Kills: a predicate that holds whatever the rows, a tolerance that forgives everything, a scale at which a claim
    fails, a claim that no scale can test."""
    found = experiment(name)
    held, broken = set(), set()
    for scale in [made() for made in found.scales.values()]:
        rows = found.made_up_rows(scale)
        for claim in found.claims:
            before, after = judge(claim, Results(rows)), judge(claim, Results(changed(rows, claim.broken_by)))
            assert before.verdict != "not held", (claim.name, before.numbers)
            held |= {claim.name} if before.verdict == "held" else set()
            broken |= {claim.name} if after.verdict == "not held" else set()
            assert judge(claim, Results([])).verdict == "not tested"
    assert held == broken == {claim.name for claim in found.claims}


def test_no_held_verdict_rests_on_a_model_that_has_not_learned():
    """Kills: a kept verdict "held" on accuracies without one model of each control above guessing by the margin.

    Counted from the rows alone, without the code that judges.
    """
    assert len(KEPT) >= 13
    tested = 0
    for file in KEPT:
        rows = [json.loads(line) for line in (file.parent / "results.jsonl").read_text().splitlines()]
        name = Path(json.loads((file.parent / "sweep.json").read_text())["experiment"]).stem
        claims = {claim.name: claim for claim in experiment(name).claims}
        for verdict in json.loads(file.read_text()):
            claim = claims[verdict["name"]]
            assert all((verdict["quote"], verdict["rule"])), claim.name
            for control in claim.controls if verdict["verdict"] == "held" else ():
                above = [
                    row["metrics"].get(control.metric, 0) - row["guess"].get(control.metric, 0)
                    for row in rows
                    if all(
                        row["point"].get(axis) in (value if isinstance(value, tuple | list) else (value,))
                        for axis, value in control.where.items()
                    )
                ]
                assert max(above) > MARGIN, (file.parent.name, claim.name)
                tested += 1
    assert tested > 20
