"""Windows of the other strand: which ones, and of DNA alone."""

import numpy as np
import pytest

from jaxzoo.data.token_data import TokenData, TokenDataConfig
from jaxzoo.data.tokenizer import ByteTokenizer, DNATokenizer
from jaxzoo.data.tokens.token_shards import TokenizedDocument, shard_name, write_manifest, write_shard
from jaxzoo.data.tokens.token_windows import Concatenation, ShuffledText


def write(path, tokenizer, ids):
    path.mkdir()
    for split in ("train", "valid"):
        rows = [TokenizedDocument(np.array(ids, np.uint16), len(ids), "")]
        sizes = {"vocab_size": tokenizer.vocab_size, "end_of_text": tokenizer.end_of_text}
        write_shard(path, shard_name(split, 0), rows, **sizes)
    described = {key: getattr(tokenizer, key) for key in ("name", "fingerprint", "vocab_size", "end_of_text")}
    write_manifest(path, {"train": 1, "valid": 1}, tokenizer=described, versions={})
    return str(path)


def test_half_of_the_windows():
    """Kills: a window that is reversed without its target, one that changes with the order of reading, all or none."""
    text = Concatenation([np.random.default_rng(0).integers(0, 6, 1000).astype(np.uint16)])
    plain, flipping = (ShuffledText(text, length=16, seed=(3,), reverse_complements=flips) for flips in (False, True))
    complement = {0: 3, 1: 2, 2: 1, 3: 0, 4: 4, 5: 5}
    flipped = []
    for number in range(200):
        window, other = plain.window(number), [complement[i] for i in plain.window(number).tolist()[::-1]]
        now = flipping.window(number).tolist()
        flipped.append(now == other)
        assert now in (window.tolist(), other)
        assert flipping.window(number).dtype == np.uint16
    assert 70 < sum(flipped) < 130
    assert (
        flipping.window(7).tolist()
        == ShuffledText(text, length=16, seed=(3,), reverse_complements=True).window(7).tolist()
    )


def test_of_dna_alone(tmp_path):
    """Kills: bytes that are complemented, validation on the other strand, a run on bases without its baselines."""
    ids = np.random.default_rng(1).integers(0, 5, 300)
    dna = TokenDataConfig(
        path=write(tmp_path / "dna", DNATokenizer(), ids), length=20, valid_tokens=200, reverse_complements=True
    )
    data = TokenData(dna, batch_size=4, valid_batch_size=4)
    np.testing.assert_array_equal(np.asarray(data.valid()[0].batch(0).tokens).ravel(), ids[:80])
    assert data.bytes_per_token == 1
    assert list(data.baselines()) == [f"order-{k}" for k in range(12)]
    of_bytes = TokenDataConfig(
        path=write(tmp_path / "b", ByteTokenizer(), ids), length=20, valid_tokens=200, reverse_complements=True
    )
    with pytest.raises(ValueError, match="reverse_complements=True must be False for tokens of bytes"):
        TokenData(of_bytes, batch_size=4, valid_batch_size=4)
