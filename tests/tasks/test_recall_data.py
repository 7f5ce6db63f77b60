"""Recall tasks as training data. Kills: an epoch that skips examples, a stream that cannot resume."""

import dataclasses
import json

import numpy as np
import pytest

from jaxzoo.tasks import mqar
from jaxzoo.tasks.base import Split
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.presets import based_figure2, zoology_figure2
from jaxzoo.tasks.recall_data import Examples, RecallData, RecallDataConfig
from tests.tasks.oracles import oracle


def recall(length: int, n_pairs: int, n_examples: int) -> Examples:
    task = mqar.release(length, n_pairs, vocab_size=64, fillers="random")
    return Examples(task=task, n_examples=n_examples)


CONFIG = RecallDataConfig(
    train=(recall(16, 2, 11), recall(12, 3, 7)),
    valid=(recall(16, 2, 7), recall(20, 5, 3)),
    seed=3,
)


@pytest.fixture(scope="module")
def data() -> RecallData:
    return RecallData(CONFIG, batch_size=3, valid_batch_size=3)


def rows(batch) -> list[tuple[bytes, bytes, bytes]]:
    parts = [np.asarray(x) for x in (batch.tokens, batch.positions, batch.targets)]
    return [tuple(part.tobytes() for part in row) for row in zip(*parts, strict=True)]


def examples(entry: Examples, split: Split) -> list[tuple[bytes, bytes, bytes]]:
    """The examples of an entry, asked of the task itself, three at a time as the data does."""
    threes = [entry.task.labelled(CONFIG.seed, np.arange(i, i + 3), split) for i in range(0, entry.n_examples, 3)]
    return [row for three in threes for row in rows(three)][: entry.n_examples]


def epochs(data: RecallData, n_epochs: int) -> list[list[list[tuple[bytes, bytes, bytes]]]]:
    stream = data.train()
    return [[rows(next(stream)) for _ in range(data.batches_per_epoch)] for _ in range(n_epochs)]


def test_epoch_visits_every_full_batch_once(data):
    """Kills examples seen twice or from another entry, short or mixed batches, and a forgotten entry."""
    assert data.batches_per_epoch == 11 // 3 + 7 // 3
    for epoch in epochs(data, 3):
        assert all(len(batch) == 3 for batch in epoch)
        for entry in CONFIG.train:
            known = set(examples(entry, "train"))
            batches = [batch for batch in epoch if set(batch) & known]
            seen = [row for batch in batches for row in batch]
            assert len(batches) == entry.n_examples // 3
            assert len(set(seen)) == len(seen)
            assert set(seen) <= known


def test_epochs_reshuffle_batches_and_examples(data):
    """Kills one order for all epochs, fixed batches, and a remainder that is the same examples every time."""
    order, members, left_out = set(), set(), set()
    known = set(examples(CONFIG.train[0], "train"))
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


@pytest.mark.parametrize("cut", [0, 5, 13])
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


@pytest.mark.full
def test_a_stream_of_some_rows_gives_those_of_the_batch(data):
    """Kills: other examples for the processes of a run, and a cursor that counts them."""
    whole, some = data.train(), data.train([2, 0])
    for _ in range(data.batches_per_epoch + 1):
        expected = rows(next(whole))
        assert rows(next(some)) == [expected[2], expected[0]]
    assert some.get_state() == whole.get_state()


def test_stream_refuses_a_foreign_cursor(data):
    """Kills a silent restart from the beginning."""
    for state in ({}, {"step": -1}, {"step": 3, "epoch": 0}):
        with pytest.raises(ValueError, match=r"must be \{'step': n\} with n >= 0"):
            data.train().set_state(state)


def test_batches_carry_true_answers(data):
    """Kills labels of other rows, positions or configs: reading the tokens gives every target."""
    stream, tasks = data.train(), {entry.task.length: entry.task for entry in CONFIG.train}
    for batch in [next(stream) for _ in range(data.batches_per_epoch)]:
        answers = oracle(batch.tokens, tasks[batch.tokens.shape[1]])
        np.testing.assert_array_equal(np.take_along_axis(answers, batch.positions, 1), batch.targets)


def test_examples_and_their_order_stay_what_they_are():
    """Kills a change of what a published seed means: numbers written down when MQAR was the only task."""
    entries = [Examples(task=mqar.paper(16, n, vocab_size=64), n_examples=8) for n in (2, 3)]
    data = RecallDataConfig(train=tuple(entries), valid=(entries[0],), seed=5).build(batch_size=2, valid_batch_size=2)
    batch = next(data.train())
    tokens = [
        [20, 50, 16, 37, 0, 0, 0, 0, 16, 0, 0, 0, 20, 0, 0, 0],
        [24, 37, 23, 39, 23, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0],
    ]
    np.testing.assert_array_equal(batch.tokens, tokens)
    np.testing.assert_array_equal(batch.positions, [[12, 8], [12, 4]])
    np.testing.assert_array_equal(batch.targets, [[50, 37], [37, 39]])


def test_zoology_figure2_is_the_papers():
    """Kills a mistyped geometry; Appendix E.2: 100k and 3k examples, F.1: vocabulary 8192, alpha 0.1."""
    for length, n_pairs in [(64, 4), (128, 8), (256, 16), (512, 64)]:
        config = zoology_figure2(length)
        task = MQARConfig(length=length, n_pairs=n_pairs, vocab_size=8192, power=0.1, distinct_values=False)
        assert config.train == (Examples(task=task, n_examples=100_000),)
        assert config.valid == (Examples(task=task, n_examples=3_000),)
    with pytest.raises(ValueError, match="length=1024 must be one of 64, 128, 256, 512"):
        zoology_figure2(1024)


def test_based_figure2_is_the_released_mixture():
    """Kills a mistyped geometry, and fillers that the released configuration does not have."""
    config = based_figure2()
    assert [entry.n_examples for entry in config.train] == [100_000, *[20_000] * 4]
    assert {entry.n_examples for entry in config.valid} == {1_000}
    train, valid = ([(e.task.length, e.task.n_pairs) for e in entries] for entries in (config.train, config.valid))
    assert train == [(64, 4), (128, 8), (256, 16), (256, 32), (256, 64)]
    assert {length / n_pairs for length, n_pairs in valid} == {16, 8, 4}
    assert [n_pairs for _, n_pairs in valid] == [4, 8, 16, 32, 64, 128, 256]
    for entry in (*config.train, *config.valid):
        assert (entry.task.power, entry.task.distinct_values, entry.task.fillers) == (0.01, True, "any")


def test_config_refuses_bad_mixtures():
    """Kills a mixture that fails only when its turn comes, hours into a run."""
    for fields, message in (
        ({"train": ()}, r"^RecallDataConfig.train=\(\) must not be empty; give it an Examples"),
        ({"valid": ()}, r"^RecallDataConfig.valid=\(\) must not be empty; give it an Examples"),
        ({"seed": -1}, r"^RecallDataConfig.seed=-1 must be in \[0, 2\^32\)"),
        ({"train": (recall(16, 2, 9), recall(16, 2, 8))}, "train=.*must name each task once.*add up their n_examples"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(CONFIG, **fields)
