"""The trainer's view of MQAR: what an epoch visits, resumption, and validation grids."""

import dataclasses
import json

import numpy as np
import pytest

from jaxzoo.tasks import MQAR, mqar
from jaxzoo.tasks.recall_data import RecallData, RecallDataConfig, based_figure2, zoology_figure2

CONFIG = RecallDataConfig(
    task=mqar.release(16, 2, vocab_size=64, fillers="random"),
    train=((16, 2, 11), (12, 3, 7)),
    valid=((16, 2, 7), (20, 5, 3)),
    seed=3,
)


@pytest.fixture(scope="module")
def data() -> RecallData:
    return RecallData(CONFIG, batch_size=3, valid_batch_size=3)


def rows(batch) -> list[tuple[bytes, bytes, bytes]]:
    names = ("tokens", "positions", "targets")
    return [tuple(part.tobytes() for part in row) for row in zip(*(np.asarray(batch[n]) for n in names), strict=True)]


def examples(segment, n: int, split: mqar.Split) -> list[tuple[bytes, bytes, bytes]]:
    """The first `n` examples of a segment, asked of the task itself."""
    length, n_pairs, _ = segment
    task = dataclasses.replace(CONFIG.task, length=length, n_pairs=n_pairs)
    return rows(MQAR(task, batch_size=n).labelled(CONFIG.seed, 0, split))


def epochs(data: RecallData, n_epochs: int) -> list[list[list[tuple[bytes, bytes, bytes]]]]:
    stream = data.train()
    return [[rows(next(stream)) for _ in range(data.batches_per_epoch)] for _ in range(n_epochs)]


def test_epoch_visits_every_full_batch_once(data):
    """Kills examples seen twice or from another segment, short or mixed batches, and a forgotten segment."""
    assert data.batches_per_epoch == 11 // 3 + 7 // 3
    for epoch in epochs(data, 3):
        assert all(len(batch) == 3 for batch in epoch)
        for segment in CONFIG.train:
            known = set(examples(segment, segment[2], "train"))
            batches = [batch for batch in epoch if set(batch) & known]
            seen = [row for batch in batches for row in batch]
            assert len(batches) == segment[2] // 3
            assert len(set(seen)) == len(seen)
            assert set(seen) <= known


def test_epochs_reshuffle_batches_and_examples(data):
    """Kills one order for all epochs, fixed batches, and a remainder that is the same examples every time."""
    order, members, left_out = set(), set(), set()
    known = set(examples(CONFIG.train[0], 11, "train"))
    for epoch in epochs(data, 60):
        order.add(tuple(len(batch[0][0]) for batch in epoch))
        members.update(frozenset(batch) for batch in epoch)
        left_out |= known - {row for batch in epoch for row in batch}
    assert len(order) > 8
    assert len(members) > 4 * data.batches_per_epoch
    assert left_out == known


def test_stream_is_a_function_of_the_seed(data):
    """Kills global random state, and a seed that changes the order but not the examples, or neither."""
    again = RecallData(CONFIG, batch_size=3, valid_batch_size=2)
    other = RecallData(dataclasses.replace(CONFIG, seed=4), batch_size=3, valid_batch_size=3)
    np.random.seed(0)  # noqa: NPY002
    first = epochs(data, 2)
    assert epochs(again, 2) == first
    seen = {row for epoch in first for batch in epoch for row in batch}
    assert not seen & {row for epoch in epochs(other, 2) for batch in epoch for row in batch}
    assert [place.tolist() for place in data.epoch(1).places] != [place.tolist() for place in other.epoch(1).places]


@pytest.mark.parametrize("cut", [0, 2, 4, 5, 13])
def test_stream_resumes_anywhere(data, cut):
    """Kills a cursor that loses its place in the epoch, forgets the epoch, or does not survive JSON."""
    stream = data.train()
    batches = [rows(next(stream)) for _ in range(cut)]
    state = json.loads(json.dumps(stream.get_state()))
    expected = [rows(next(stream)) for _ in range(7)]
    resumed = data.train()
    next(resumed)
    resumed.set_state(state)
    assert [rows(next(resumed)) for _ in range(7)] == expected
    stream.set_state({"step": 0})
    assert [rows(next(stream)) for _ in range(cut)] == batches


def test_stream_refuses_a_foreign_cursor(data):
    """Kills a silent restart from the beginning."""
    for state in ({}, {"step": -1}, {"step": 3, "epoch": 0}):
        with pytest.raises(ValueError, match=r"must be \{'step': n\} with n >= 0"):
            data.train().set_state(state)


@pytest.mark.parametrize("valid_batch_size", [3, 100])
def test_validation_evaluates_exactly_its_examples(valid_batch_size):
    """Kills a dropped or padded last batch, training examples, and sets that depend on the batch size."""
    data = RecallData(CONFIG, batch_size=3, valid_batch_size=valid_batch_size)
    sets = data.valid()
    assert [valid.slices for valid in sets] == [{"length": 16, "pairs": 2}, {"length": 20, "pairs": 5}]
    for valid, segment in zip(sets, CONFIG.valid, strict=True):
        seen = [row for i in range(valid.n_batches) for row in rows(valid.batch(i))]
        assert seen == examples(segment, segment[2], "test")
        assert rows(valid.batch(0)) == seen[:valid_batch_size]
        with pytest.raises(IndexError, match=rf"must be in \[0, {valid.n_batches}\)"):
            valid.batch(valid.n_batches)


def test_batches_carry_true_answers(data):
    """Kills labels of other rows, positions or configs: reading the tokens gives every target."""
    stream = data.train()
    for batch in [next(stream) for _ in range(data.batches_per_epoch)]:
        tokens, positions = np.asarray(batch["tokens"]), np.asarray(batch["positions"])
        n_pairs = positions.shape[1]
        answers = mqar.oracle(tokens, dataclasses.replace(CONFIG.task, length=tokens.shape[1], n_pairs=n_pairs))
        np.testing.assert_array_equal(np.take_along_axis(answers, positions, 1), batch["targets"])


def test_sizes_cover_all_splits(data):
    """Kills a model whose positions end with the training lengths."""
    assert (data.max_length, data.vocab_size, data.bytes_per_token) == (20, 64, None)


def test_zoology_figure2_is_the_papers():
    """Kills a mistyped geometry; Appendix E.2: 100k and 3k examples, vocabulary 8192, alpha 0.1."""
    for length, n_pairs in [(64, 4), (128, 8), (256, 16), (512, 64)]:
        config = zoology_figure2(length)
        assert config.train == ((length, n_pairs, 100_000),)
        assert config.valid == ((length, n_pairs, 3_000),)
        assert (config.task.vocab_size, config.task.power, config.task.distinct_values) == (8192, 0.1, False)
    with pytest.raises(ValueError, match="length=1024 must be one of 64, 128, 256, 512"):
        zoology_figure2(1024)


def test_based_figure2_is_the_released_mixture():
    """Kills a mistyped geometry, and fillers that the released configuration does not have."""
    config = based_figure2()
    assert sum(segment[2] for segment in config.train) == 180_000
    assert [segment[:2] for segment in config.train] == [(64, 4), (128, 8), (256, 16), (256, 32), (256, 64)]
    assert {length / n_pairs for length, n_pairs, _ in config.valid} == {16, 8, 4}
    assert [segment[1] for segment in config.valid] == [4, 8, 16, 32, 64, 128, 256]
    assert (config.task.power, config.task.distinct_values, config.task.fillers) == (0.01, True, "any")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train": ()}, r"train=\(\) must hold at least one"),
        ({"seed": -1}, "seed=-1 must not be negative"),
        ({"train": ((16, 2, 9), (16, 2, 8))}, "train=.*must name each .* once.*add up their n_examples"),
        ({"valid": ((16, 2, 0),)}, "valid=.*n_examples of at least 1"),
        ({"valid": ((16, 5, 9),)}, "MQARConfig.length=16 must be at least 4 n_pairs=20"),
    ],
)
def test_config_refuses_bad_segments(fields, message):
    """Kills a mixture that fails only when its turn comes, hours into a run."""
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **fields)


def test_data_refuses_bad_batch_sizes():
    """Kills a segment that is never seen because it does not fill one batch."""
    with pytest.raises(ValueError, match=r"segment \(12, 3, 7\) must have at least batch_size=8 examples"):
        RecallData(CONFIG, batch_size=8, valid_batch_size=1)
    with pytest.raises(ValueError, match="valid_batch_size=0 must be at least 1"):
        RecallData(CONFIG, batch_size=1, valid_batch_size=0)
