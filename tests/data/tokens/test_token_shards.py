"""Token shards. Kills: a flipped bit that is trained on."""

import json

import numpy as np
import pytest

from jaxzoo.data.tokens.token_shards import (
    Counts,
    TokenDirectory,
)
from jaxzoo.data.tokens.token_windows import Concatenation
from jaxzoo.utils.checksums import add_checksum
from tests.data.shards import random_documents, write_tokens


def test_reads_what_was_written(tmp_path):
    """Kills: ids cut to 16 bits, starts that are off by a document, and subsets counted by shard alone."""
    for vocab_size, dtype in [(2**16, np.uint16), (2**16 + 1, np.uint32)]:
        rng = np.random.default_rng(0)
        shards = [random_documents(rng, 7, n_ids=vocab_size, longest=5) for _ in range(3)]
        directory = write_tokens(tmp_path / "tokens", {"train": shards}, vocab_size=vocab_size)
        for documents, shard in zip(shards, directory.shards("train"), strict=True):
            assert shard.tokens.dtype == dtype
            assert shard.tokens.tolist() == [token for ids, _ in documents for token in [*ids, vocab_size - 1]]
            assert [shard.subsets[i] for i in shard.subset_ids] == [subset for _, subset in documents]
            ends = [*shard.starts[1:], len(shard.tokens)]
            read = [shard.tokens[a : b - 1].tolist() for a, b in zip(shard.starts, ends, strict=True)]
            assert read == [ids for ids, _ in documents]
        flat = [document for documents in shards for document in documents]
        for name in "ab":
            ids = [ids for ids, subset in flat if subset == name]
            n_tokens = sum(map(len, ids))
            assert directory.split("train").subsets[name] == Counts(len(ids), 2 * n_tokens, n_tokens + len(ids))


def test_fingerprint_changes_with_one_token(tmp_path):
    """Kills: a fingerprint of names or sizes alone."""
    first, second, third = (
        write_tokens(tmp_path / name, {"train": [[(ids, "a")]]}, vocab_size=9)
        for name, ids in (("first", [1, 2, 3]), ("second", [1, 2, 4]), ("third", [1, 2, 3]))
    )
    assert first.fingerprint == third.fingerprint != second.fingerprint
    assert first.fingerprint.startswith("test-9:")


def test_damaged_array_is_named_and_not_used(tmp_path):
    """Kills: a reader that trusts names: a shard cut short would train on less text in silence."""
    for damage in ["missing", "short", "pickle"]:
        directory = write_tokens(tmp_path, {"train": [[([1, 2, 3], "a")]]}, vocab_size=9)
        file = tmp_path / "train-00000.tokens.npy"
        if damage == "missing":
            file.unlink()
        elif damage == "short":
            np.save(file, np.zeros(3, np.uint16))
        else:
            np.save(file, np.array([{}], object), allow_pickle=True)
        with pytest.raises(ValueError, match=r"train-00000\.tokens\.npy .*remove train-00000\.json and tokenize again"):
            directory.shards("train")


def flip(file, at: int = -1) -> None:
    """Changes a bit of a file."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_is_named_when_its_array_is_first_read(tmp_path):
    """Kills: training and scores on damaged tokens, in silence; a check of what nobody reads."""
    documents = [([1, 2, 3], "a"), ([4, 4], "b")]
    directory = write_tokens(tmp_path, {"train": [documents, documents]}, vocab_size=9)
    for key, read in (("tokens", "tokens"), ("starts", "starts"), ("subsets", "subset_ids")):
        file = tmp_path / f"train-00001.{key}.npy"
        flip(file)
        first, second = directory.shards("train")
        assert first[:2].tolist() == [1, 2]
        with pytest.raises(
            OSError, match=rf"train-00001\.{key}\.npy is damaged: .*; remove train-00001\.json and"
        ) as damage:
            getattr(second, read)
        assert "\n" not in str(damage.value)
        flip(file)
    text = Concatenation(directory.shards("train"))
    assert text[5:9].tolist() == [4, 8, 1, 2]
    flip(tmp_path / "train-00001.tokens.npy")
    text = Concatenation(directory.shards("train"))
    assert (len(text), text[0:3].tolist()) == (14, [1, 2, 3])
    with pytest.raises(OSError, match=r"train-00001\.tokens\.npy is damaged"):
        text[5:9]


def test_refuses_what_is_no_finished_directory(tmp_path):
    """Kills: a half-made directory that is taken for a whole one."""
    with pytest.raises(ValueError, match=r"manifest\.json is missing"):
        TokenDirectory(tmp_path)
    directory = write_tokens(tmp_path, {"train": [[([1], "a")]]}, vocab_size=9)
    with pytest.raises(ValueError, match="no split 'valid'; it has train"):
        directory.shards("valid")
    for changed, message in (({"format": 1}, "format=1 must be 2"), ({"splits": 3}, "splits=3 must be an object")):
        (tmp_path / "manifest.json").write_text(json.dumps(add_checksum({**directory.json, **changed})))
        with pytest.raises(ValueError, match=message):
            TokenDirectory(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(directory.json))
    with pytest.raises(ValueError, match=r"manifest\.json: is damaged: its checksum is missing"):
        TokenDirectory(tmp_path)
