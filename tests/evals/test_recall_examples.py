"""Coloured examples of recall. Kills: a window or token of another gap."""

import numpy as np
import pytest

from jaxzoo.data.base import UNLABELLED
from jaxzoo.evals.recall_examples import ShownToken, colored, draw_examples, examples, windows
from jaxzoo.evals.recall_slices import RecallSums
from tests.evals.test_recall_slices import batch_of

TEXTS = (
    "xyzabc0123456789ABCDEFGHIJKLMNOPQRSTabq",
    "abcdefghijklmnopqrstuvwxyzabcdefghijklm",
    "0123456789" * 3 + "ABCDEFGHI",
)


def scored(nats):
    """Windows of the texts, and a row of padding."""
    ids = np.array([list(text.encode()) for text in (*TEXTS, TEXTS[0])])
    targets = ids[:, 1:].copy()
    targets[-1] = UNLABELLED
    return windows(batch_of(ids[:, :-1], targets), np.array([*nats, nats[0]], np.float32), RecallSums(None))


@pytest.fixture
def found():
    """Examples of two runs; the second text has the larger gap, and the third one none on its hits."""
    run, baseline = np.ones((3, 38)), np.ones((3, 38))
    run[0, TEXTS[0].rindex("b") - 1] = 3.5
    run[1, 26:] = 2.0
    run[2, 30:] = 99.0  # new tokens do not count
    run[2, 10] = 0.5
    return examples(scored(run), scored(baseline), 2, lambda ids: chr(ids[0]))


def test_windows_in_the_order_of_their_gaps_on_hits(found):
    """Kills: gaps of all tokens, of the other sign, a window of padding, one window too many."""
    assert [max(piece.gap for piece in pieces) for pieces in found] == [1.0, 2.5]
    hits = [piece.text for piece in found[0] if piece.is_hit]
    assert hits == list("bcdefgh")  # the bigram "ab" is the first that repeats; 4 hits, and AFTER more


def test_tokens_are_left_out_and_hits_have_their_gap(found):
    """Kills: an earlier occurrence that is not shown, a wrong count of hidden tokens, newlines in a line."""
    text = colored(found, "conv", "attention")
    assert text.plain.splitlines()[0] == "Largest gaps of conv to attention on AR hits, in nats"
    line = text.plain.splitlines()[-1]
    assert line == "yzab ...(20 tokens)... JKLMNOPQRSTa[b +2.5]q"


def test_colors():
    """Kills: the better model's colour for the worse one, a colour beyond the strongest one, a colour without a gap."""
    assert ShownToken("a", 0.0, False).color == "#ffffff"
    assert ShownToken("a", 9.0, True).color == ShownToken("a", 3.0, True).color == "#d55e00"
    assert ShownToken("a", -3.0, True).color == "#0072b2"


@pytest.mark.full
def test_the_picture(found, tmp_path):
    """Kills: text that matplotlib reads as a formula, an empty picture."""
    found[0].append(ShownToken("$x_", 1.0, True))
    draw_examples(found, tmp_path / "examples.png", run="conv", baseline="attention")
    assert (tmp_path / "examples.png").stat().st_size > 5_000
