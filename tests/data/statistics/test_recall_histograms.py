"""Histograms of repeats against a slow count. Kills: sequences that cross subsets or shards."""

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
