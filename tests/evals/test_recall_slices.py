"""Recall slices against a slow search. Kills: a distance or frequency that is off by one."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.data.base import Batch
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.evals.recall_report import RecallReport
from jaxzoo.evals.recall_slices import MeasuredModel, RecallSums, SliceScore, target_repeats
from jaxzoo.evals.valid_tokens import valid_digest
from tests.evals.slices_reference import CountedBigrams, check_sections, distance_back, slow_sections

SEQUENCE = "abcabcabdbc"
SEEN = {"ab": 2000, "bc": 1250, "ca": 1, "db": 5}
"""Occurrences of the bigrams in training; `bd` was never seen."""
NATS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
BETTER = [1, 2, 3, 4, 1, 1, 7, 8, 7, 1]


def batch_of(tokens, targets, segment_ids=None):
    arrays = {"tokens": tokens, "targets": targets, "segment_ids": segment_ids}
    return Batch(**{name: jnp.asarray(x, jnp.int32) for name, x in arrays.items() if x is not None})


def as_json(sections):
    return {part: {name: s._asdict() for name, s in scores.items()} for part, scores in sections._asdict().items()}


@pytest.fixture
def by_hand():
    """Function that returns the sections of the ten targets of `SEQUENCE`: `by_hand(nats)`."""
    ids = np.frombuffer(SEQUENCE.encode(), np.uint8)[None]
    bigrams = CountedBigrams({(ord(pair[0]), ord(pair[1])): n for pair, n in SEEN.items()})

    def sections(nats, bigrams=bigrams):
        sums = RecallSums(bigrams)
        sums.add(batch_of(ids[:, :-1], ids[:, 1:]), np.array([nats], np.float32))
        return sums.sections()

    return sections


def report_of(by_hand, **options):
    models = [MeasuredModel("conv", 3, 1000, by_hand(NATS)), MeasuredModel("attention", 4, 1001, by_hand(BETTER))]
    return RecallReport(models, **{"has_baseline": True, "at_most": 1250, "digest": "d1", **options})


def test_ten_tokens_by_hand(by_hand):
    """Kills: "fewer than" for "at most", the last target left out, a bigram that repeats itself, frequent hits.

        position          0     1     2     3     4     5     6     7     8     9    10
        token             a     b     c     a     b     c     a     b     d     b     c
        bigram back       -     -     -     -     3     3     3     3     -     -     5
        trigram back      -     -     -     -     -     3     3     3     -     -     -
        in training       -  2000  1250     1  2000  1250     1  2000     0     5  1250
        nats              -     1     2     3     4     5     6     7     8     9    10

    Repeats that are rare stand at 5, 6 and 10.
    """
    found = by_hand(NATS)
    assert found.slices["all tokens"] == SliceScore(10, 1.0, 5.5, pytest.approx(math.sqrt(55 / 6 / 10)))
    assert found.slices["AR hits"] == SliceScore(3, 0.3, 7.0, pytest.approx(math.sqrt(14 / 3 / 2)))
    assert found.slices["other tokens"][:3] == (7, 0.7, pytest.approx((1 + 2 + 3 + 4 + 7 + 8 + 9) / 7))
    assert found.slices["frequent repeats"][:3] == (2, 0.2, 5.5)
    assert found.slices["AR hits, n = 3"][:3] == (2, 0.2, 5.5)
    assert found.slices["AR hits"].perplexity == pytest.approx(math.exp(7))
    repeated = {name: (s.tokens, s.nats) for name, s in found.repeated_by_frequency.items()}
    assert repeated == {"1": (1, 6.0), "1,000-9,999": (4, (4 + 5 + 7 + 10) / 4)}
    others = {name: (s.tokens, s.nats) for name, s in found.others_by_frequency.items()}
    assert others == {"0": (1, 8.0), "1": (1, 3.0), "2-9": (1, 9.0), "1,000-9,999": (2, 1.5)}
    assert {name: s.tokens for name, s in found.hits_by_distance.items()} == {"1-15": 3}


def test_without_counts_hits_are_the_repeats(by_hand):
    """Kills: slices by a frequency that nobody knows."""
    found = by_hand(NATS, bigrams=None)
    assert {name: s.tokens for name, s in found.slices.items()} == {
        "all tokens": 10, "repeated bigrams": 5, "other tokens": 5, "repeated trigrams": 3
    }  # fmt: skip
    assert (found.repeated_by_frequency, found.others_by_frequency) == ({}, {})


def random_batches(rng, packing):
    """Two batches of rows that differ, some targets without label, the last row of padding."""
    for length in (80, 23):
        rows = rng.choice(5, (3, length + 1), p=[0.24, 0.24, 0.24, 0.24, 0.04])
        tokens, targets = rows[:, :-1], rows[:, 1:].copy()
        targets[rng.random(targets.shape) < 0.1] = -100
        tokens[2], targets[2] = 0, -100
        segments = {
            "none": None,
            "end-of-text": np.cumsum(tokens == 4, axis=1),
            "anywhere": 7 + np.cumsum(rng.random(tokens.shape) < 0.05, axis=1),
        }[packing]
        yield tokens, targets, segments, rng.random(tokens.shape)


def test_random_rows_equal_the_slow_search():
    """Kills: context of another segment or row, a target in the wrong segment, batches that overwrite one another."""
    for packing in ["none", "end-of-text", "anywhere"]:
        rng = np.random.default_rng(len(packing))
        bigrams = CountedBigrams({(a, b): int(10 ** rng.uniform(-1, 4)) for a in range(5) for b in range(5)})
        sums, rows = RecallSums(bigrams, at_most=300), []
        for tokens, targets, segments, nats in random_batches(rng, packing):
            sums.add(batch_of(tokens, targets, segments), nats)
            given = np.zeros_like(tokens) if segments is None else segments
            rows += zip(tokens.tolist(), targets.tolist(), given.tolist(), nats.tolist(), strict=True)
        slow = slow_sections(rows, bigrams, 300)
        assert len(slow["slices"]["AR hits"]) > 10
        check_sections(as_json(sums.sections()), slow)
    windows, labelled = (
        sums.windows(),
        [[nats for t, nats in zip(row[1], row[3], strict=True) if t >= 0] for row in rows],
    )
    np.testing.assert_allclose(windows[:, 0], [sum(nats) for nats in labelled if nats], rtol=1e-6)
    assert windows[:, 1].sum() == pytest.approx(sum(slow["slices"]["AR hits"]), rel=1e-6)
    assert (windows[:, 1] > 0).any()
    assert (windows[:, 1] < windows[:, 0]).all()


def test_distances_reach_to_the_last_target():
    """Kills: the distance to the first occurrence, one that is off by one, a last target that is taken for another."""
    for n in [2, 3, 4]:
        rng = np.random.default_rng(n)
        rows = rng.integers(0, 3, (2, 60))
        segments = np.sort(rng.integers(0, 3, (2, 59)), axis=1)
        found = target_repeats(rows[:, :-1], rows[:, 1:], n, segments)
        for row, ids, distances in zip(rows.tolist(), segments.tolist(), found.tolist(), strict=True):
            read = [[token for token, s in zip(row[: i + 1], ids, strict=False) if s == ids[i]] for i in range(59)]
            assert distances == [distance_back(r, row[i + 1], n) for i, r in enumerate(read)]
        assert 0 < np.count_nonzero(found) < found.size
        assert np.count_nonzero(found[:, -1]) or n > 2


def test_report_of_two_models(by_hand):
    """Hand-computed: hits 3 of 10, on average worse by 6 nats; by 2 overall on 18 + 2 nats: 1.8 of 2.0.

    Kills: another baseline, shares of another slice, differences with the wrong sign.
    """
    report = report_of(by_hand)
    content = report.to_json()
    assert content["models"][0]["share_of_gap"]["formula"] == pytest.approx(0.9)
    assert content["models"][0]["share_of_gap"]["due_to_hits"] == pytest.approx(1.8)
    assert "share_of_gap" not in content["models"][1]
    assert (content["baseline"], content["at_most"]) == ("attention", 1250)
    assert content["validation"] == {"tokens": 10, "sha256": "d1"}
    shown = report.markdown()
    lines = {line.split("|")[1].strip(): line for line in shown.splitlines() if line.startswith("|")}
    assert [cell.strip() for cell in lines["slice"].split("|")[2:-1]] == [
        "tokens", "share", "conv", "attention", "conv - attention"
    ]  # fmt: skip
    assert [cell.strip() for cell in lines["AR hits"].split("|")[2:-1]] == [
        "3", "30.00%", "1097 (7.000 ± 1.528)", "2.718 (1.000 ± 0.000)", "+6.000"
    ]  # fmt: skip
    assert "Share of the gap of conv to attention due to AR hits: 90.0% (+1.8000 of +2.0000 nats" in shown


def test_validation_tokens_are_the_same_however_they_are_batched(tmp_path):
    """Kills: a digest of batches instead of rows, or of tokens without their segments; lengths that count twice."""
    (tmp_path / "a.txt").write_text("never odd or even, " * 40)
    config = TextDataConfig(path=str(tmp_path), length=16, valid_tokens=64, valid_fraction=0.3)

    def digest(valid_batch_size=3, **fields):
        data = dataclasses.replace(config, **fields)
        return valid_digest(data.build(batch_size=1, valid_batch_size=valid_batch_size))

    assert digest() == digest(valid_batch_size=4)
    assert len({digest(), digest(length=32), digest(packing="segments"), digest(valid_tokens=48)}) == 4
    with pytest.raises(ValueError, match=r"of several lengths, 16, 32, score .* --data.valid-lengths 16"):
        digest(valid_lengths=(16, 32))
