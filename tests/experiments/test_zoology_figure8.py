"""Perplexities of models whose answers are known. Kills: a perplexity of other tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.zoology_figure8 import main, measure, sequences, table, write
from jaxzoo.tasks.mqar import MQARConfig

TASK = MQARConfig(vocab_size=40, length=36, n_pairs=6)


@pytest.mark.full
def test_each_pair_stands_twice_and_fillers_elsewhere():
    """Kills: a value that is missing, misplaced, overwritten, or scored at its first appearance."""
    batch = jax.device_get(sequences(TASK, np.arange(5)))
    whole = np.concatenate([batch.tokens, batch.targets[:, -1:]], axis=1)
    np.testing.assert_array_equal(whole[:, 1:], batch.targets)
    for row, recalled, filler in zip(whole, batch.recalled, batch.filler, strict=True):
        pairs = dict(zip(row[0:12:2], row[1:12:2], strict=True))
        again = np.flatnonzero(recalled)  # places of their targets are one further
        assert sorted(row[again]) == sorted(pairs)
        assert all(pairs[row[at]] == row[at + 1] for at in again)
        assert again.min() >= 12
        np.testing.assert_array_equal(filler, row[1:] == 0)
        assert filler.sum() == 36 - 4 * 6


class Recalls(nnx.Module):
    """Model with odds of 38 to 1 for the value of a key that it has seen, over 40 tokens and 8 of padding."""

    def __call__(self, tokens):
        past = jnp.tril(jnp.ones((35, 35), bool), -1)[None]
        seen = (tokens[:, :, None] == tokens[:, None, :]) & past & (tokens > 0)[..., None] & (tokens < 20)[..., None]
        value = jnp.take_along_axis(tokens, seen.argmax(-1) + 1, axis=1)
        return jnp.where(seen.any(-1, keepdims=True), jnp.log(38.0) * jax.nn.one_hot(value, 48), 0.0)


@pytest.mark.full
def test_perplexities_of_known_models():
    """Kills: perplexities of other tokens, in bits, over the padded vocabulary, or errors of tokens."""

    found = measure(Recalls(), TASK, n_sequences=8, batch_size=4)
    assert found["recalled"] == pytest.approx((38 + 39) / 38, rel=1e-5)
    assert found["recalled_error"] == pytest.approx(0, abs=1e-6)
    assert found["filler"] == pytest.approx(40, rel=1e-5)


def rows(*perplexities, error=0.01):
    pairs = (16, 64, 256)
    return [
        {
            "model": "m",
            "pairs": p,
            "guess": 100,
            "recalled": x,
            "recalled_error": error,
            "filler": 1.1,
            "filler_error": 0.01,
        }
        for p, x in zip(pairs, perplexities, strict=True)
    ]


def test_files(tmp_path):
    """Kills: a picture or table that cannot be made, results that are overwritten."""
    write(rows(2, 3, 9), tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "rows.jsonl",
        "table.md",
        "figure.png",
        "figure.svg",
    }
    assert "| m | 256 | 9 | 1.1 |" in table(rows(2, 3, 9))
    assert main(["--models", "m", "--out", str(tmp_path / "out")]) == 2
