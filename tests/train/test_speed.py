"""Speed of a run. Kills: pauses or compilation that count as steps."""

import dataclasses
from types import SimpleNamespace

import pytest

from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.train import speed as module
from jaxzoo.train.session import Session
from jaxzoo.train.speed import Speed, StepWork, step_work, train_flops
from jaxzoo.utils.devices import find_device

WORK = StepWork("tokens", 512, 3e9, 1e12)


@pytest.fixture
def clock(monkeypatch):
    """`clock.now`, which tests move."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
    return clock


def device(peak):
    return SimpleNamespace(memory_stats=lambda: peak and {"peak_bytes_in_use": peak})


def test_rates_by_hand(clock):
    """Kills: a rate from step 0 in a resumed run, pauses that count, a mean over the run in the rows, the memory of the
    first device for that of the fullest, MFU that counts the steps before."""
    speed = Speed(WORK, [device(2_000_000_000), device(7_340_000_000), device(None)], start_step=40)
    clock.now += 2
    assert speed.row(44) == {
        "tokens_per_second": pytest.approx(4 / 2 * 512),
        "mfu": pytest.approx(2 * 3e9 / 1e12),
        "peak_memory_bytes": 7_340_000_000,
    }
    with speed.pause():
        clock.now += 50
    clock.now += 0.5
    assert speed.row(54)["tokens_per_second"] == pytest.approx(10 / 0.5 * 512)
    assert speed.steps_per_second(54) == pytest.approx(14 / 2.5)
    assert speed.describe(54) == ["2,867 tokens/s", "1.7% MFU", "7.3 GB"]


def test_work_of_a_step(tiny_config, tmp_path, monkeypatch):
    """Kills: examples of text, tokens of a task, the model's longest sequence or the longest window of validation for
    that of training, the peak of one device for that of the mesh, a head at positions without a label."""
    d, t, vocab, rows = 16, 16, 40, 16
    model = dataclasses.replace(tiny_config.model, pattern=tiny_config.model.pattern[1:], mlp="none", n_layers=1)
    recall = dataclasses.replace(tiny_config, model=model)
    (layer,) = model.layers
    work = step_work(Session(recall))
    assert work[:2] == ("examples", rows)
    assert work.flops == pytest.approx(3 * rows * (t * layer.flops_per_token(t) + 2 * 2 * d * vocab))
    assert work.peak_flops is None
    (tmp_path / "a.txt").write_text("never odd or even " * 99)
    data = TextDataConfig(path=str(tmp_path), length=12, valid_lengths=(12, 16), valid_tokens=48)
    model, mesh = dataclasses.replace(model, vocab_size=257), MeshConfig(data=8)
    text = dataclasses.replace(recall, model=model, data=data, mesh=mesh)
    session = Session(text)
    kind = find_device("TPU v5 lite")
    assert kind is not None
    monkeypatch.setattr(module, "find_device", lambda name: kind)
    work = step_work(session)
    assert work[:2] == ("tokens", rows * 12)
    assert work.flops == pytest.approx(3 * rows * 12 * (layer.flops_per_token(12) + 2 * d * 264))
    assert train_flops(text, 1) == work.flops
    assert work.peak_flops == pytest.approx(8 * 197e12)
