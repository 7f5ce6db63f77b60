"""The experiment on a genome. Kills: bases that are scored twice or not at every length."""

import numpy as np
import pytest

from experiments import dna
from jaxzoo.data.base import UNLABELLED
from jaxzoo.sweep import Measurement
from jaxzoo.sweep.results import BITS
from tests.data.shards import DNA, write_tokens
from tests.experiments.hand_made import row

MARKOV = {
    **row(0.0, model=dna.MARKOV, long=False, learning_rate=None, seed=None),
    "metrics": {BITS: 1.92, "order-0": 1.99, "order-2": 1.95, "order-7": 1.92},
}


def trained(model, bits, rate=0.1):
    return row(0.3, {BITS: bits}, model=model, long=False, learning_rate=rate, seed=0)


def test_the_same_bases_are_scored_at_every_length(tmp_path, monkeypatch):
    """Kills: a length that scores other bases, a model that cannot read the longest window, another path."""
    rng = np.random.default_rng(0)
    documents = {split: [[(rng.integers(0, 4, 4500).tolist(), "")]] for split in ("train", "valid")}
    write_tokens(tmp_path, documents, tokenizer=DNA)
    monkeypatch.setenv("DNA_TOKENS", str(tmp_path))
    long = {"long": (256, 2048), "positions": (64, 1024), "long_tokens": 4096}
    setting = dna.Setting(length=128, batch_size=2, steps=4, asked=(64, 2048), valid_tokens=4096, **long)
    point = {"model": "Mamba", "long": False, "learning_rate": 0.5, "seed": 3}
    config = setting.config(point)
    assert (config.optimizer.learning_rate, config.train.seed, config.train.steps) == (0.5, 3, 4)
    targets = []
    for asked in (config, *setting.also(point).values(), *setting.also({**point, "long": True}).values()):
        data = asked.data.build(batch_size=2, valid_batch_size=asked.train.valid_batch_size)
        assert asked.model.max_length >= data.max_length
        for valid in data.valid():
            scored = np.concatenate([np.ravel(valid.batch(i).targets) for i in range(valid.n_batches)])
            targets.append(scored[scored != UNLABELLED])
    assert [each.size for each in targets] == [4096] * 5 + [3072] * 2
    assert all((each == targets[0][-each.size :]).all() for each in targets)
    markov = setting.config({"model": dna.MARKOV, "learning_rate": None, "seed": None})
    assert isinstance(markov, Measurement)
    found = dna.markov(**markov.arguments)
    counts = np.bincount(targets[0], minlength=6)[:4] / 4096
    assert found["order-0"] == pytest.approx(-(counts * np.log2(counts)).sum(), abs=0.02)
    assert found[BITS] == min(value for name, value in found.items() if name != BITS)
