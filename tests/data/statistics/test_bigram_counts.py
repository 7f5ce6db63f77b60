"""Bigram counts against `collections.Counter`. Kills: pairs lost between shards, damage read as zeros."""

import json

import numpy as np
import pytest

from jaxzoo.data.statistics.bigram_counts import BigramCounts, count_bigrams
from jaxzoo.data.tokens.token_shards import TokenDirectory
from jaxzoo.utils.checksums import add_checksum
from tests.data import recall_reference
from tests.data.shards import random_documents, write_tokens


def stream_of(tokens: TokenDirectory, split: str = "train") -> list[int]:
    return np.concatenate([shard.tokens for shard in tokens.shards(split)]).tolist()


def as_dictionary(counts: BigramCounts) -> dict[tuple[int, int], int]:
    keys = counts.entries.keys
    pairs = zip((keys >> np.uint64(32)).tolist(), (keys & np.uint64(2**32 - 1)).tolist(), strict=True)
    return dict(zip(pairs, counts.entries.counts.tolist(), strict=True))


@pytest.fixture(name="tokens")
def random_tokens(tmp_path):
    """Shards of several sizes; the second has one token, whose two pairs cross the borders of shards."""
    rng = np.random.default_rng(0)
    shards = [random_documents(rng, n, n_ids=30, longest=200) for n in (20, 1, 7, 30)]
    shards[1] = [([], "a")]
    valid = [random_documents(rng, 3, n_ids=30, longest=20)]
    return write_tokens(tmp_path / "tokens", {"train": shards, "validation": valid}, vocab_size=31)


@pytest.mark.parametrize("memory", [3000, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2**20))])
def test_equals_a_counter(tokens, tmp_path, memory):
    """Kills: pairs across shards lost or counted twice, a chunk's border, sums that drop a part; memory for one pair
    at a time (1 byte is less) still ends with the truth."""
    out = tmp_path / "counts"
    if memory == 1:  # thousands of parts: the small split is enough
        count_bigrams(tokens.path, out, split="validation", memory=memory)
        stream = stream_of(tokens, "validation")
    else:
        count_bigrams(tokens.path, out, memory=memory)
        stream = stream_of(tokens)
    counts = BigramCounts(out)
    expected = recall_reference.bigram_counts(stream)
    assert as_dictionary(counts) == expected
    assert (np.diff(counts.entries.keys.astype(object)) > 0).all()
    assert counts.manifest.total == len(stream) - 1 == sum(expected.values())
    assert {p.name for p in out.iterdir()} == {"manifest.json", "bigrams.keys.npy", "bigrams.counts.npy"}


def test_lookups(tokens, tmp_path):
    """Kills: the neighbour's count for a pair that was never met, before the first and after the last entry too;
    shapes lost."""
    count_bigrams(tokens.path, tmp_path / "counts")
    counts, expected = BigramCounts(tmp_path / "counts"), recall_reference.bigram_counts(stream_of(tokens))
    previous, following = np.meshgrid(np.arange(35, dtype=np.uint16), np.arange(33, dtype=np.int32), indexing="ij")
    want = np.array([[expected[a, b] for b in range(33)] for a in range(35)])
    np.testing.assert_array_equal(counts.counts(previous, following), want)
    assert counts.counts(previous, following).dtype == np.int64
    np.testing.assert_array_equal(counts.counts(previous[:0], following[:0]), want[:0])
    largest = np.array([2**32 - 1])
    assert counts.counts(largest, largest).tolist() == [0]


def test_large_ids(tmp_path):
    """Kills: keys that overflow 32 bits, or are compared as floats."""
    ids = [2**20 - 3, 2**20 - 2, 0, 2**20 - 3, 2**20 - 2]
    tokens = write_tokens(tmp_path / "tokens", {"train": [[(ids, "a")]]}, vocab_size=2**20)
    count_bigrams(tokens.path, tmp_path / "counts")
    assert as_dictionary(BigramCounts(tmp_path / "counts")) == recall_reference.bigram_counts(stream_of(tokens))


def test_damaged_counts_are_refused(tokens, tmp_path):
    """Kills: zeros for what is not there."""
    out = tmp_path / "counts"
    with pytest.raises(ValueError, match=r"holds no bigram counts: manifest.json is missing"):
        BigramCounts(out)
    count_bigrams(tokens.path, out)
    keys = out / "bigrams.keys.npy"
    whole = keys.read_bytes()
    keys.write_bytes(whole[:-8])
    with pytest.raises(ValueError, match=r"bigrams.keys.npy must hold uint64"):
        BigramCounts(out)
    for file in (keys, out / "bigrams.counts.npy"):
        good = whole if file == keys else file.read_bytes()
        file.write_bytes(good[:-8] + bytes([good[-8] ^ 1]) + good[-7:])
        with pytest.raises(OSError, match=rf"{file.name} is damaged: .*; remove its directory and count again"):
            BigramCounts(out)
        file.write_bytes(good)
    np.save(keys, np.zeros(3, np.uint64))
    with pytest.raises(ValueError, match=r"bigrams.keys.npy must hold uint64\["):
        BigramCounts(out)
    keys.write_bytes(whole)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest.pop("checksum")
    for changed, message in (({"format": 1}, "format=1 must be 2"), ({"kind": "recall"}, "kind='recall' must be")):
        (out / "manifest.json").write_text(json.dumps(add_checksum({**manifest, **changed})))
        with pytest.raises(ValueError, match=message):
            BigramCounts(out)


def test_other_tokens_are_refused(tokens, tmp_path):
    """Kills: counts of one corpus taken for those of another."""
    count_bigrams(tokens.path, tmp_path / "counts")
    counts = BigramCounts(tmp_path / "counts")
    counts.check_made_from(tokens)
    assert counts.fingerprint == tokens.fingerprint
    other = write_tokens(tmp_path / "other", {"train": [[([1, 2], "a")]]}, vocab_size=31)
    with pytest.raises(ValueError, match=rf"counts the bigrams of tokens {tokens.fingerprint}, and .*/other holds"):
        counts.check_made_from(other)
