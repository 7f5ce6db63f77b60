"""Windows of the reverse strand. Kills: a window reversed without its target."""

import dataclasses

import numpy as np
import pytest

from jaxzoo.data.token_data import TokenData, TokenDataConfig
from jaxzoo.data.tokens.token_windows import Concatenation, ShuffledText
from tests.data.shards import BYTES, DNA, write_tokens


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
    for kind in (DNA, BYTES):
        write_tokens(tmp_path / kind["name"], {split: [[(ids, "")]] for split in ("train", "valid")}, tokenizer=kind)
    config = TokenDataConfig(path=str(tmp_path / "dna"), length=20, valid_tokens=200, reverse_complements=True)
    data = TokenData(config, batch_size=4, valid_batch_size=4)
    np.testing.assert_array_equal(np.asarray(data.valid()[0].batch(0).tokens).ravel(), ids[:80])
    assert data.bytes_per_token == 1
    assert list(data.baselines()) == [f"order-{k}" for k in range(12)]
    with pytest.raises(ValueError, match="reverse_complements=True must be False for tokens of bytes"):
        TokenData(dataclasses.replace(config, path=str(tmp_path / "bytes")), batch_size=4, valid_batch_size=4)
