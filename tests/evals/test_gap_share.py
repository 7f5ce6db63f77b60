"""The share of a gap that is due to AR hits. Kills: a wrong sign, cap or interval."""

import numpy as np
import pytest

from jaxzoo.evals.gap_share import gap_share, share_interval
from jaxzoo.evals.recall_slices import SliceScore


def scores(overall, hits, share=0.25):
    """Scores of all 100 tokens and of the hits among them."""
    n = round(100 * share)
    return SliceScore(100, 1.0, overall, 0.1), SliceScore(n, share, hits if n else None, 0.1 if n else None)


def test_cases():
    """Kills: a sign, a division by zero, a cap or a sentence that is lost."""
    for ours, theirs, formula, sentence, case in [
        ((2.0, 3.0), (1.5, 2.0), 0.5, None, "the model is worse overall and on AR hits"),
        ((2.0, 5.0), (1.5, 2.0), 1.0, None, "better on other tokens: cut at 100 %"),
        ((2.0, 1.0), (1.5, 2.0), -0.5, None, "not on AR hits: none of the gap"),
        ((1.5, 3.0), (2.0, 2.0), -0.5, 1.0, "sentence says 100 %, its formula is negative"),
        ((1.5, 1.0), (2.0, 2.0), 0.5, None, "this is the share of its lead"),
        ((2.0, 3.0), (2.0, 2.0), None, None, "there is no gap overall"),
        ((2.0, 3.0, 0.0), (1.5, 2.0, 0.0), None, None, "there are no AR hits"),
    ]:
        found = gap_share(scores(*ours), scores(*theirs))
        assert found.formula == (None if formula is None else pytest.approx(formula))
        assert found.sentence == (found.formula if sentence is None else sentence)
        assert case in found.case
        assert found.gap == pytest.approx(ours[0] - theirs[0])


def test_interval_of_a_share():
    """Kills: tokens or models that are resampled instead of pairs of windows, a cap or level that is lost, an interval
    of a gap that is noise."""
    rng = np.random.default_rng(5)
    theirs = rng.exponential(100.0, (100, 2))
    hits, others = rng.normal(3.0, 4.0, 100), rng.normal(2.0, 6.0, 100)
    ours = theirs + np.stack([hits + others, hits], axis=1)
    rows = [rng.integers(100, size=100) for _ in range(20_000)]
    slow = [hits[row].sum() / (hits[row] + others[row]).sum() for row in rows]
    found = share_interval(ours, theirs, draws=20_000)
    assert found == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.01)
    assert share_interval(theirs + np.stack([hits, 2 * hits], axis=1), theirs) == (1.0, 1.0)
    noise = others - others.mean()
    assert share_interval(theirs + np.stack([noise, hits], axis=1), theirs) is None
