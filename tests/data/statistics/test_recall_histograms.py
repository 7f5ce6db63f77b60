"""Histograms of repeated n-grams against a slow count of the same documents."""

from collections import Counter

import numpy as np
import pytest

from jaxzoo.data.resumable import Job
from jaxzoo.data.statistics import corpus_recall
from jaxzoo.data.statistics.corpus_recall import Cut, count_repeats, sum_repeats
from jaxzoo.data.statistics.recall_summary import Histograms
from jaxzoo.data.tokens.token_shards import TokenDirectory
from tests.data import recall_reference
from tests.data.shards import random_documents, write_tokens

END = 12
STOP = np.isin(np.arange(13), [3, END])


def counted(cut: Cut, out, stop=STOP) -> dict[str, Histograms]:
    out.mkdir()
    notes = [out / f"{name}.json" for name in TokenDirectory(cut.data).split(cut.split).shards]
    for i, note in enumerate(notes):
        count_repeats(cut, i, stop, Job(note, lambda **_: None))
    return sum_repeats(cut, notes)


def as_counters(histograms: Histograms, kind: int, n: int) -> tuple[Counter, Counter]:
    return tuple(Counter(dict(enumerate(h[kind, n].tolist()))) for h in histograms)  # type: ignore[return-value]


@pytest.fixture(name="shards")
def documents_of_three_subsets():
    """The third, "c", is too short in every shard; empty documents, and a shard without "b"."""
    rng = np.random.default_rng(0)
    shards = [list(random_documents(rng, n, n_ids=12, longest=30)) for n in (9, 30, 2, 14)]
    shards[2] = [(ids, "a") for ids, _ in shards[2]] + [([], "a")]
    shards[3].insert(1, ([1] * 5, "c"))
    return shards


@pytest.mark.parametrize("block", [2**20, 50])
def test_equals_the_reference(shards, block, tmp_path, monkeypatch):
    """Kills: sequences across subsets or shards, a document's end-of-text lost, blocks that skip or repeat sequences,
    stop words looked up at the n-gram's end alone."""
    monkeypatch.setattr(corpus_recall, "_BLOCK", block)
    write_tokens(tmp_path / "tokens", {"train": shards}, vocab_size=13)
    length = 16
    found = counted(Cut(tmp_path / "tokens", "train", length, (3, 2)), tmp_path / "out")
    assert list(found) == ["a", "b"]
    for subset, histograms in found.items():
        for kind, stop in enumerate([(), np.flatnonzero(STOP).tolist()]):
            for column, n in enumerate((3, 2)):
                distances, per_sequence = recall_reference.repeats_of_subset(
                    shards, subset, end_of_text=END, length=length, n=n, stop=stop
                )
                assert distances.total() > 0
                assert as_counters(histograms, kind, column) == (distances, Counter(per_sequence))


@pytest.mark.full
@pytest.mark.parametrize(
    ("most", "taken"), [(1, [0]), (3, [0, 2, 5]), (5, [0, 1, 3, 4, 6]), (8, list(range(8))), (99, list(range(8)))]
)
def test_fewer_sequences_are_spread_evenly(most, taken, tmp_path):
    """Of 8 sequences, 3 + 0 + 5 in three shards, those at floor(8 i / most): each tells its number by its repeats."""
    length = 16
    rows = [[1] * (k + 2) + list(range(2, length - k - 1)) for k in range(8)]
    assert all(len(row) == length - 1 for row in rows)
    shards = [[(row, "a") for row in part] for part in (rows[:3], [[1]], rows[3:])]
    write_tokens(tmp_path / "tokens", {"train": shards}, vocab_size=20, end_of_text=19)
    found = counted(Cut(tmp_path / "tokens", "train", length, (2,), most), tmp_path / "out", stop=np.zeros(20, bool))
    assert np.flatnonzero(found["a"].sequences[0, 0]).tolist() == taken
