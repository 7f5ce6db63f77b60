"""Recall of pretrained models. Kills: a filler that is also a key."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.pretrained_recall import main, text_of
from experiments.zoology_figure8 import sequences
from jaxzoo.data.completions import CompletionsConfig
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.tasks.mqar import MQARConfig


def test_fillers():
    """Kills: a filler that is also a key, a recalled value that the filler replaces."""
    task = MQARConfig(vocab_size=128, length=64, n_pairs=4)
    plain, other = (sequences(task, np.arange(3), filler=filler) for filler in (0, 7))
    assert (jnp.asarray(plain.filler) == other.filler).all()
    assert (jnp.asarray(plain.recalled) == other.recalled).all()
    assert int((other.targets == 7).sum()) == int(plain.filler.sum())
    swapped = jnp.where(plain.targets == 0, 7, jnp.where(plain.targets == 7, 0, plain.targets))
    np.testing.assert_array_equal(other.targets, swapped)


def test_text_of_a_finetuned_run():
    """Kills: an error after all questions for a run whose data are completions; a begin token that is lost."""
    pairs = CompletionsConfig(path="pairs.jsonl", length=64, tokenizer_path="bytes", begin=3)
    text = text_of(pairs, 100)
    assert (text.length, text.begin, text.tokenizer_path, text.valid_tokens) == (64, 3, "bytes", 100)
    assert text_of(text, 10).valid_tokens == 64
    assert text_of(TextDataConfig(path="book.txt", length=8), 16) == TextDataConfig(
        path="book.txt", length=8, valid_tokens=16
    )


@pytest.mark.full
def test_rows(tmp_path, capsys):
    """Kills: an experiment that fails after an hour; a question that is not asked, a state that is not counted."""
    out = tmp_path / "out"
    sizes = ["--examples", "2", "--entries", "2", "--lines", "2", "--mqar-length", "64", "--mqar-pairs", "4"]
    words = ["--models", "experiments/models/text-based", "--out", str(out), "--text-tokens", "1024", *sizes]
    assert main(words) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    kinds = [row["kind"] for row in rows]
    assert [kinds.count(kind) for kind in ("records", "phone book", "needle", "MQAR, perplexity")] == [1, 1, 1, 3]
    assert "bigrams, nats" in kinds
    assert all(row["state_bytes"] > 0 for row in rows)
    assert (out / "table.md").read_text().count("\n") == len(rows) + 2
    assert "mathdefault" not in (out / "figure.svg").read_text(), "ticks that are printed as markup"
    assert main(words) == 2
