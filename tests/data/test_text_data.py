"""Batches of text against slices of the text. Kills: targets off by one, a cursor that skips batches."""

import json
import re
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.data.corpus.files import read_corpus
from jaxzoo.data.text_data import TextData, TextDataConfig

LENGTH = 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 files of random letters, 0 to 40 bytes above a minimum of 5."""
    rng = np.random.default_rng(1)
    for i in range(40):
        data = rng.integers(97, 123, rng.integers(5, 45)).astype(np.uint8)
        (tmp_path / f"{i:02d}.txt").write_bytes(data.tobytes())
    return tmp_path


def make(folder: Path, *, batch_size=5, valid_batch_size=3, **fields) -> TextData:
    config = TextDataConfig(**{"path": str(folder), "length": LENGTH, "valid_fraction": 0.3, "seed": 2, **fields})
    return TextData(config, batch_size=batch_size, valid_batch_size=valid_batch_size)


def flat(folder: Path, split: str, seed: int = 2) -> list[int]:
    """The tokens of a split, built without the code under test but for the split itself."""
    documents = getattr(read_corpus(str(folder), valid_fraction=0.3, seed=seed), split)
    return [token for d in documents for token in [*d.data, 256]]


def arrays(batch: Batch) -> dict[str, jax.Array]:
    """The fields that a batch has, by name."""
    return {name: x for name, x in vars(batch).items() if x is not None}


def take(stream, n: int) -> list[dict[str, np.ndarray]]:
    return [{k: np.asarray(v) for k, v in arrays(next(stream)).items()} for _ in range(n)]


def assert_same(got, expected) -> None:
    for a, b in zip(got, expected, strict=True):
        for key in ("tokens", "targets"):
            np.testing.assert_array_equal(a[key], b[key])


def test_training_rows_are_windows_of_the_training_text(folder):
    """Kills: targets that are off by one, windows of validation text, and an end that is never drawn."""
    text = flat(folder, "train")
    windows = {tuple(text[i : i + LENGTH + 1]): i for i in range(len(text) - LENGTH)}
    seen = set()
    for batch in take(make(folder, batch_size=64).train(), 300):
        assert batch["tokens"].shape == batch["targets"].shape == (64, LENGTH)
        assert batch["tokens"].dtype == batch["targets"].dtype == np.int32
        rows = np.concatenate([batch["tokens"], batch["targets"][:, -1:]], axis=1)
        np.testing.assert_array_equal(batch["targets"][:, :-1], batch["tokens"][:, 1:])
        seen |= {windows[tuple(row.tolist())] for row in rows}
    assert seen == set(windows.values())


def test_batches_depend_on_seed_and_number_only(folder):
    """Kills: a generator that runs on from batch to batch, equal batches, and an ignored seed."""
    batches = take(make(folder).train(), 6)
    assert_same(take(make(folder).train(), 6), batches)
    assert len({b["tokens"].tobytes() for b in batches}) == 6
    jumped = make(folder).train()
    jumped.set_state({**jumped.get_state(), "windows": {"next_index": 4}})
    assert_same(take(jumped, 2), batches[4:])
    one = make(folder, path=str(folder / "00.txt"), length=2)
    other = make(folder, path=str(folder / "00.txt"), length=2, seed=3)
    assert not np.array_equal(take(one.train(), 1)[0]["tokens"], take(other.train(), 1)[0]["tokens"])


def test_a_stream_of_some_rows_gives_those_of_the_batch(folder):
    """Kills: other windows for the processes of a run, and a cursor that counts them."""
    whole, some = make(folder).train(), make(folder).train([4, 1])
    for expected, got in zip(take(whole, 3), take(some, 3), strict=True):
        np.testing.assert_array_equal(got["tokens"], expected["tokens"][[4, 1]])
        np.testing.assert_array_equal(got["targets"], expected["targets"][[4, 1]])
    assert some.get_state() == whole.get_state()


def test_a_saved_cursor_resumes_exactly(folder):
    """Kills: a cursor that counts batches made ahead, so that a resumed run skips them."""
    for taken in [0, 1, 5]:
        expected = take(make(folder).train(), 12)
        stream = make(folder).train()
        take(stream, taken)
        time.sleep(0.05)  # the thread fills its buffer beyond what was taken
        state = json.loads(json.dumps(stream.get_state()))
        assert_same(take(stream, 2), expected[taken : taken + 2])
        restored = make(folder).train()
        take(restored, 3)
        restored.set_state(state)
        assert_same(take(restored, 4), expected[taken : taken + 4])
        stream.set_state(state)
        assert_same(take(stream, 4), expected[taken : taken + 4])


def test_a_cursor_of_other_text_is_refused(folder):
    """Kills: a resume that goes on silently over changed files."""
    state = make(folder).train().get_state()
    (folder / "00.txt").write_text("changed")
    with pytest.raises(ValueError, match=r"state fingerprint='bytes-257:\w{12}' must equal 'bytes-.*restore"):
        make(folder).train().set_state(state)


def test_validation_is_the_text_from_its_beginning(folder):
    """Kills: overlapping or skipped targets, a lost last batch, and a bound on windows for tokens."""
    for valid_tokens in [LENGTH, 5 * LENGTH - 1, 100_000]:
        text = flat(folder, "valid")
        n = min(valid_tokens, len(text) - 1) // LENGTH
        (valid,) = make(folder, valid_tokens=valid_tokens).valid()
        assert valid.slices == {}
        assert valid.n_batches == -(-n // 3)
        batches = [valid.batch(i) for i in range(valid.n_batches)]
        assert [len(b.tokens) for b in batches] == [min(3, n - i) for i in range(0, n, 3)]
        assert all(isinstance(x, jax.Array) and x.dtype == np.int32 for b in batches for x in arrays(b).values())
        tokens, targets = (
            np.concatenate([np.asarray(getattr(b, k)).ravel() for b in batches]) for k in ("tokens", "targets")
        )
        assert tokens.tolist() == text[: n * LENGTH]
        assert targets.tolist() == text[1 : n * LENGTH + 1]
        with pytest.raises(IndexError, match=rf"batch {valid.n_batches} must be in"):
            valid.batch(valid.n_batches)


def test_validation_at_several_lengths(folder):
    """Kills: lengths that are scored on different targets, windows of training that follow, and batches of another
    length's rows. Whole windows of 4 and of 6 tokens are multiples of 12."""
    data = make(folder, valid_lengths=(4, 6), valid_tokens=80)
    text = flat(folder, "valid")
    assert [(s.slices, s.n_batches) for s in data.valid()] == [({"length": 4}, 6), ({"length": 6}, 4)]
    for valid in data.valid():
        batches = [valid.batch(i) for i in range(valid.n_batches)]
        assert {b.tokens.shape[1] for b in batches} == {valid.slices["length"]}
        assert np.concatenate([np.asarray(b.tokens).ravel() for b in batches]).tolist() == text[:72]
        assert np.concatenate([np.asarray(b.targets).ravel() for b in batches]).tolist() == text[1:73]
        with pytest.raises(IndexError, match=rf"batch {valid.n_batches} must be in"):
            valid.batch(valid.n_batches)
    assert data.bytes_per_token == sum(target != 256 for target in text[1:73]) / 72
    assert next(data.train()).tokens.shape == (5, LENGTH)
    assert (make(folder).max_length, make(folder, valid_lengths=(4, 50)).max_length) == (LENGTH, 50)


def test_validation_by_position(folder):
    """Kills: positions scored on different targets, before their octave or after it, a context that is not the text
    before, baselines and bytes of the unscored beginning. Positions 2 and 4: the first 4 tokens are context."""
    data = make(folder, valid_positions=(2, 4), valid_tokens=31)
    text = flat(folder, "valid")
    assert [(s.slices, s.n_batches) for s in data.valid()] == [({"position": 2}, 2), ({"position": 4}, 2)]
    for valid, rows, length in zip(data.valid(), ([6, 4], [3, 2]), (4, 8), strict=True):
        batches = [valid.batch(i) for i in range(2)]
        assert [b.tokens.shape for b in batches] == [(n, length) for n in rows]
        tokens, targets = (np.concatenate([getattr(b, k) for b in batches]) for k in ("tokens", "targets"))
        assert (targets[:, : length // 2] == UNLABELLED).all()
        assert targets[:, length // 2 :].ravel().tolist() == text[5:25]
        starts = range(4 - length // 2, 25 - length, length // 2)
        assert tokens.tolist() == [text[i : i + length] for i in starts]
    assert data.bytes_per_token == sum(target != 256 for target in text[5:25]) / 20
    assert data.max_length == 8
    with pytest.raises(ValueError, match=r"valid_positions=\(2,\) must be empty with valid_lengths"):
        make(folder, valid_positions=(2,), valid_lengths=(4,))


def segments_of(tokens: list[int]) -> list[int]:
    """Number of end-of-text tokens at or before each token."""
    return [tokens[: i + 1].count(256) for i in range(len(tokens))]


def test_segments_part_documents_and_change_nothing_else(folder):
    """Kills: a segment that opens after end-of-text (which would see the next document's labels from the last one's
    context), ids that run on from row to row, lost labels, other windows, and segments in training alone."""
    data = make(folder, packing="segments", length=23, batch_size=64)
    plain = make(folder, length=23, batch_size=64)
    (valid,), (plain_valid,) = data.valid(), plain.valid()
    pairs = list(zip(take(data.train(), 3), take(plain.train(), 3), strict=True))
    pairs += [(arrays(valid.batch(i)), arrays(plain_valid.batch(i))) for i in range(valid.n_batches)]
    assert len(pairs) > 4
    for packed, concatenated in pairs:
        assert concatenated.keys() == {"tokens", "targets"}
        assert_same([packed], [concatenated])
        assert packed["segment_ids"].dtype == np.int32
        assert packed["segment_ids"].tolist() == [segments_of(row) for row in packed["tokens"].tolist()]
    assert pairs[0][0]["segment_ids"].max() > 1


def test_a_packed_token_sees_its_own_document_alone(tmp_path):
    """Kills: a target with a context of two documents, or with none: all that are possible, written down by hand."""
    for i in range(12):
        (tmp_path / str(i)).write_text("ab" if i % 2 else "c")
    (valid,) = make(tmp_path, packing="segments", length=3, valid_batch_size=64).valid()
    batch = valid.batch(0)
    rows = zip(batch.tokens.tolist(), batch.segment_ids.tolist(), batch.targets.tolist(), strict=True)
    seen = {
        (
            tuple(token for token, other in zip(tokens[: i + 1], ids[: i + 1], strict=True) if other == ids[i]),
            targets[i],
        )
        for tokens, ids, targets in rows
        for i in range(3)
    }
    a, b, c, end = *b"abc", 256
    within = {((a,), b), ((a, b), end), ((c,), end), ((b,), end)}
    behind_an_end = {((end,), a), ((end,), c), ((end, a), b), ((end, c), end), ((end, a, b), end)}
    assert seen <= within | behind_an_end
    assert seen & within
    assert seen & behind_an_end


def test_baselines_are_scored_on_the_validation_windows(folder):
    """Kills: baselines counted on validation text or scored on training text."""
    text, data = flat(folder, "train"), make(folder)
    targets = np.concatenate([np.asarray(s.batch(i).targets) for s in data.valid() for i in range(s.n_batches)])
    p = [(text.count(w) + 1) / (len(text) + 257) for w in targets.ravel().tolist()]
    assert data.baselines()["unigram"].nats_per_token == pytest.approx(-np.mean(np.log(p)), rel=1e-12)


def test_config_errors():
    """Kills: a config that fails only after minutes of reading."""
    for fields, message in [
        ({"length": 0}, "length=0 must be positive"),
        ({"valid_fraction": 0.0}, "valid_fraction=0.0 must be in (0, 1)"),
        ({"valid_fraction": 1.0}, "valid_fraction=1.0 must be in (0, 1)"),
        ({"valid_tokens": 6, "length": 7}, "valid_tokens=6 must be at least one window, length=7"),
        (
            {"valid_tokens": 11, "valid_lengths": (4, 6), "length": 4},
            "valid_tokens=11 must be at least one window, valid_lengths=(4, 6); take 12",
        ),
        ({"valid_lengths": (4, 0)}, "valid_lengths.1=0 must be positive"),
        ({"seed": -1}, "seed=-1 must be in [0, 2^32)"),
        ({"packing": "pad"}, "packing='pad' must be one of 'concatenate', 'segments'"),
    ]:
        with pytest.raises(ValueError, match=re.escape(f"TextDataConfig.{message}")):
            TextDataConfig(**fields)


@pytest.mark.parametrize(("train", "valid", "split"), [(6, 99, "train"), (99, 6, "valid")])
def test_a_split_that_holds_no_window_is_an_error(tmp_path, train, valid, split):
    """Kills: an endless or empty epoch over a text of `length` tokens."""
    for name in "ab":
        (tmp_path / name).write_text(name)
    for d in read_corpus(str(tmp_path), valid_fraction=0.3, seed=2).train:
        (tmp_path / d.name).write_text("x" * train)
    for d in read_corpus(str(tmp_path), valid_fraction=0.3, seed=2).valid:
        (tmp_path / d.name).write_text("x" * valid)
    with pytest.raises(ValueError, match=f"length=7 must be below the 7 tokens of the {split} split of path=.*; take"):
        make(tmp_path)
    if split == "valid":
        with pytest.raises(ValueError, match=r"valid_lengths=10 must be below the 7 tokens of the valid split"):
            make(tmp_path, valid_lengths=(2, 5))
