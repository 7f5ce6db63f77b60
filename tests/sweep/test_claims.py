"""Claims of sweeps. Kills: a claim that holds although no model learned."""

import dataclasses
import itertools

import pytest

from jaxzoo.sweep import Change, Claim, Finding, Missing, Results, grid, learned, solved
from jaxzoo.sweep.claims import chance, complaints, judge
from jaxzoo.sweep.results import BITS, ranked


def row(model, accuracy, *, width=16, rate=0.01, seed=0, guess=0.25):
    """Row of a run; `accuracy=None`: a diverged one."""
    return {
        "point": {"model": model, "width": width, "learning_rate": rate, "seed": seed},
        "id": f"{model}-{width}-{rate}-{seed}",
        "metrics": {} if accuracy is None else {"valid/accuracy": accuracy},
        "guess": {"valid/accuracy": guess},
    }


def fails(results):
    """Whether every model of the results but attention fails at width 16."""
    names = [name for name in results.values("model", width=16) if name != "attention"]
    if not names:
        raise Missing("no model but attention")
    scores = {name: results.score(model=name, width=16) for name in names}
    return Finding(max(scores.values()) <= 0.9, ", ".join(f"{name} {score:.2f}" for name, score in scores.items()))


CLAIM = Claim(
    name="fails",
    text="Models fail at width 16.",
    quote="They fail.",
    source="Paper, Sec. 1",
    rule="0.9 is solved.",
    controls=(solved(model=("H3", "Hyena")),),
    holds=fails,
    broken_by=(Change({"model": "H3", "width": 16}, 0.95),),
)


def test_a_model_that_solves_nothing_confirms_nothing():
    """Kills: a claim that holds because a model learned nothing; a control that another model passes in its place."""
    floor = [row("H3", 0.26), row("Hyena", 0.3, width=64)]
    verdict = judge(CLAIM, Results(floor))
    assert verdict.verdict == "not tested"
    assert "Hyena (0.30 at most; guessing 0.25)" in verdict.numbers
    verdict = judge(CLAIM, Results([row("H3", 0.5), row("H3", 0.95, width=64), row("Hyena", 0.4), *floor[1:]]))
    assert (verdict.verdict, verdict.numbers) == ("held", "H3 0.50")
    assert verdict.control == "seen above 0.9: H3 0.95; left out: Hyena (0.40 at most; guessing 0.25)"
    assert judge(CLAIM, Results([row("H3", 0.95), row("Hyena", 0.4)])).verdict == "not held"


def test_a_lesser_control_is_a_margin_above_guessing():
    """Kills: a margin of nothing, the guessing line of another point, the highest score in place of the one that is
    farthest above its line."""
    claim = dataclasses.replace(CLAIM, controls=(learned(model="H3"),))
    assert judge(claim, Results([row("H3", 0.34)])).verdict == "not tested"
    assert judge(claim, Results([row("H3", 0.36)])).verdict == "held"
    high = row("H3", 0.5, guess=0.45)
    assert judge(claim, Results([high, row("H3", 0.3, width=64)])).verdict == "not tested"
    assert judge(claim, Results([high, row("H3", 0.36, width=64)])).control == "seen 0.1 above guessing: H3 0.36"


def test_the_score_is_the_best_mean_over_the_seeds():
    """Kills: the best seed in place of the mean, a rate that ran once and beats those that ran thrice, a diverged seed
    that is left out, the spread of another rate."""
    seeds = [row("H3", score, seed=seed) for seed, score in enumerate((0.9, 0.5, 0.7))]
    once = [row("H3", 0.8, rate=0.1), row("H3", None, rate=0.003)]
    score = Results([*seeds, *once]).seeds(model="H3")
    assert (score.mean, score.low, score.high) == (pytest.approx(0.7), 0.5, 0.9)
    assert [found["point"]["seed"] for found in score.rows] == [0, 2, 1]
    assert Results([*seeds[:2], row("H3", None, seed=2)]).score(model="H3") == pytest.approx(1.4 / 3)
    wide = [row("H3", 0.75, width=64)]
    assert Results([*seeds, *wide]).score(model="H3") == 0.75  # another point has its own number of seeds
    with pytest.raises(Missing):
        Results(once[1:]).seeds(model="H3")


def test_fewer_bits_are_better():
    """Kills: the worst rate for the best, a diverged seed that counts as no bits at all."""
    bits = lambda rate, seed, value: {  # noqa: E731
        **row("H3", None, rate=rate, seed=seed),
        "metrics": {} if value is None else {BITS: value},
    }
    found = Results([bits(0.1, 0, 1.9), bits(0.1, 1, None), bits(0.01, 0, 2.0), bits(0.01, 1, 1.98), bits(1.0, 0, 1.0)])
    score = found.seeds(BITS, model="H3")
    assert (score.mean, score.low, score.high) == (pytest.approx(1.99), 1.98, 2.0)
    assert [run["metrics"][BITS] for run in score.rows] == [1.98, 2.0]
    assert [run["metrics"].get(BITS) for run in ranked(found.rows[:3], BITS)] == [1.9, 2.0, None]


def test_chance_by_hand():
    """Kills: a test that counts fewer orders than reach the statistic, or orders across groups; a probability of 0."""
    rises = lambda orders: sum(b > a for group in orders for a, b in itertools.pairwise(group))  # noqa: E731
    assert chance(3, [[1, 2, 3, 4]], rises) == pytest.approx(1 / 24)
    assert chance(2, [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], rises) == pytest.approx(26 / 32)
    assert chance(9, [list(range(10))], rises) == pytest.approx(1 / 2_000)
    assert chance(0, [list(range(10))], rises) == 1
    with pytest.raises(Missing, match="too few sizes"):
        chance(2, [[1, 2, 3]], rises)


def test_claims_are_checked_before_anything_runs():
    """Kills: a claim that nothing breaks, one that fails on its own rows."""
    rows = [row("H3", 0.5), row("H3", 0.95, width=64)]
    assert complaints((CLAIM,), rows, ()) == []
    never = dataclasses.replace(CLAIM, broken_by=(Change({"model": "no such"}, 0.95),))
    (complaint,) = complaints((never,), rows, ())
    assert "still holds" in complaint
    (complaint,) = complaints((dataclasses.replace(CLAIM, holds=lambda results: results.rows[99]),), rows, ())
    assert complaint.startswith("claim 'fails' fails on made-up rows: IndexError")
    (complaint,) = complaints((CLAIM,), [row("H3", 0.95)], (lambda: rows,))
    assert "does not hold" in complaint
    with pytest.raises(ValueError, match="broken_by"):
        dataclasses.replace(CLAIM, broken_by=())


def test_seeds_of_a_rate_that_has_lost_are_not_missing():
    """Kills: a search of learning rates whose claims are never tested, a rate without a run that is not missed."""
    points = grid(model=("a", "b"), learning_rate=(0.1, 0.2), seed=(0, 1))
    rows = [{"point": point, "metrics": {}} for point in points if point["seed"] == 0 or point["learning_rate"] == 0.1]
    Results.of(rows, points).require()
    results = Results.of([row for row in rows if row["point"] != points[2]], points)
    results.require(model="b")
    with pytest.raises(Missing, match=r"not finished: model a, learning_rate 0\.2, seed 0"):
        results.require(model=("a", "b"))
