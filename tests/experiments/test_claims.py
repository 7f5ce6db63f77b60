"""Claims of all experiments, on the rows that they bring. Kills: a claim that always holds or never does."""

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from jaxzoo.sweep.claims import MARGIN, Change, changed, judge
from jaxzoo.sweep.directory import About
from jaxzoo.sweep.report_files import judged
from jaxzoo.sweep.results import Results
from jaxzoo.sweep.run_spec import RunSpec

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


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_point_has_a_run_of_its_own(name):
    """Kills: an axis that the config ignores, a point that the models or tasks refuse."""
    scale = experiment(name).scales["smoke"]()
    points = [dict(point) for point in scale.points]
    if name == "hybrid_ratio":  # attention alone is one run whatever the linear mixer
        points = [point for point in points if point["attention"] < 4]
    assert all(list(point) == list(points[0]) for point in points)
    assert len({RunSpec.of(scale, point).id for point in points}) == len(points)


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


UNFINISHED = [
    ("zoology_figure2", "overnight", "wider-than-attention", lambda at: at["model"] == "Hyena" and at["d_model"] > 16),
    ("zoology_figure2", "laptop", "linear", lambda at: 32 <= at["d_model"] < 2 * at["length"] > 32),
    ("zoology_figure2_bottom", "laptop", "hybrid-improved", lambda at: at["length"] == 64 and at["d_model"] == 64),
    ("zoology_figure6", "laptop", "ret-net-grows", lambda at: at["n_pairs"] == 8 and at["d_model"] == 16),
    ("zoology_figure7", "laptop", "more-heads", lambda at: at["model"] == "Hyena, heads of 8"),
    ("zoology_figure7", "laptop", "more-work", lambda at: (at["model"], at["d_model"]) in WITHOUT_ONE_SIZE),
    ("zoology_figure7", "laptop", "still-worse", lambda at: at["model"] == "Hyena, heads of 8"),
    ("based_figure2", "laptop", "based-expands", lambda at: at["model"] == "Mamba"),
    ("based_figure2", "laptop", "mamba-small", lambda at: at["model"] == "Attention" and at["d_model"] == 16),
    ("based_figure3", "laptop", "taylor-parameters", lambda at: at["model"] != "Taylor" and at["d_model"] > 16),
    ("based_figure3", "laptop", "poselu-frontier", lambda at: at["model"] == "Taylor" and at["feature_dim"] == 8),
    ("cat_selective_copy", "laptop", "mamba", lambda at: at["model"] == "CAT, positions"),
]
"""Claims that do not hold on the rows of `_failing`, and points without which they would, as far as one sees."""
WITHOUT_ONE_SIZE = {("Hyena, heads of 1", 16), ("Hyena, heads of 2", 32), ("Hyena, heads of 4", 64)}


def _failing(found, scale, claim):
    """Made-up rows at which a claim does not hold."""
    rows = changed(found.made_up_rows(scale), claim.broken_by)
    special = {
        "still-worse": [Change({"model": "Hyena, heads of 8"}, 0.99)],
        "more-heads": [Change({"model": "Hyena, heads of 8"}, 0.45)],
        "mamba-small": [Change({"model": "Mamba"}, {"state_bytes": 20_000})],
        "poselu-frontier": [Change({"model": "PosELU"}, 0.5), Change({"model": "Taylor", "feature_dim": 8}, 0.9)],
        "mamba": [Change({"model": "CAT"}, 0.5), Change({"model": "CAT, long filter"}, 0.5)],
    }
    return changed(rows, special.get(claim.name, []))


@pytest.mark.parametrize(("name", "scale", "claim", "where"), UNFINISHED, ids=[case[2] for case in UNFINISHED])
def test_an_unfinished_sweep_makes_no_claim_hold(name, scale, claim, where):
    """Kills: a width that was not run yet taken for one that is not enough, a frontier, a smallest state or a best
    model without the runs that are to come, a comparison of nothing."""
    found = experiment(name)
    scale, (claim,) = found.scales[scale](), [each for each in found.claims if each.name == claim]
    found = dataclasses.replace(found, claims=(claim,))
    rows = _failing(found, scale, claim)
    (whole,), (part,) = (
        judged(found, scale, About(name, "laptop"), each).verdicts
        for each in (rows, [row for row in rows if not where(row["point"])])
    )
    assert (whole.verdict, part.verdict) == ("not held", "not tested"), (whole.numbers, part.numbers)
