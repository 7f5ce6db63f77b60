"""Exact match and F1 by hand. Kills: articles or punctuation that count."""

import sys

import pytest

from jaxzoo.evals.squad_metrics import compute_exact, compute_f1, in_place_of_transformers


def test_by_hand():
    """Kills: case, punctuation or articles that count, repeats that count once, a division by zero."""
    for truth, answer, exact, f1 in (
        ("The New York Times!", "new york times", 1, 1.0),
        ("new york times", "york times square", 0, 2 / 3),
        ("a theatre", "the thea tre", 0, 0.0),  # articles are whole words
        ("no no", "no", 0, 2 / 3),
        ("the", "an", 1, 1.0),
        ("the", "paris", 0, 0.0),
    ):
        assert compute_exact(truth, answer) == exact, (truth, answer)
        assert compute_f1(truth, answer) == pytest.approx(f1), (truth, answer)


def test_the_import_of_lm_eval(monkeypatch):
    """Kills: a module that stays, and hides transformers from others."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    with in_place_of_transformers():
        import transformers.data.metrics.squad_metrics as found  # pyright: ignore[reportMissingImports]

        assert (found.compute_exact, found.compute_f1) == (compute_exact, compute_f1)
    assert "transformers" not in sys.modules
