"""The share of a gap that is due to AR hits, case by case."""

import pytest

from jaxzoo.evals.gap_share import gap_share
from jaxzoo.evals.recall_slices import Score


def scores(overall, hits, share=0.25):
    """All 100 tokens, and the hits among them."""
    n = round(100 * share)
    return Score(100, 1.0, overall, 0.1), Score(n, share, hits if n else None, 0.1 if n else None)


def test_cases():
    """Kills: a sign, a division by zero, a cap or a sentence that is lost."""
    for ours, theirs, formula, sentence, case in [
        ((2.0, 3.0), (1.5, 2.0), 0.5, None, "the model is behind overall and on AR hits"),
        ((2.0, 5.0), (1.5, 2.0), 1.0, None, "ahead on other tokens: cut at 100 %"),
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


def test_other_tokens_are_refused():
    """Kills: a gap between two texts."""
    with pytest.raises(ValueError, match="must be the same tokens"):
        gap_share(scores(2.0, 3.0), scores(2.0, 3.0, share=0.3))
