"""Batches of token shards against the flat tokens. Kills: windows lost between shards, epochs or sources."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jaxzoo.data import token_data
from jaxzoo.data.token_data import TokenData
from jaxzoo.data.tokens.token_windows import Concatenation, as_integers, source_of
from jaxzoo.train.config import TokenDataConfig, TokenSourceConfig
from tests.data.shards import BYTES, write_tokens

LENGTH = 7
END = 256


def write(path: Path, *, seed: int = 1, shards: int = 4, valid: int = 150, splits=("train", "valid")) -> Path:
    """A token directory of bytes: shards of 1 to 40 documents of 0 to 12 bytes, and a validation document."""
    rng = np.random.default_rng(seed)

    def document(length):
        return rng.integers(0, 256, length).tolist(), str(rng.choice(["a", "b"]))

    made = {
        "train": [[document(rng.integers(0, 13)) for _ in range(n)] for n in rng.permutation([1, 2, 25, 40])[:shards]],
        "valid": [[document(valid // 3)], [document(valid // 3), document(valid // 3)]],
    }
    write_tokens(path, {split: made[split] for split in splits}, tokenizer=BYTES)
    return path


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens")


def make(*paths: Path, weights=(1.0,), batch_size=4, valid_batch_size=3, **fields) -> TokenData:
    if len(paths) == 1:
        fields["path"] = str(paths[0])
    else:
        sources = zip(paths, weights, strict=True)
        fields["sources"] = tuple(TokenSourceConfig(path=str(path), weight=weight) for path, weight in sources)
    config = TokenDataConfig(**{"length": LENGTH, "seed": 2, "valid_tokens": 70, **fields})
    return config.build(batch_size=batch_size, valid_batch_size=valid_batch_size)  # type: ignore[return-value]


def flat(path: Path, split: str = "train") -> list[int]:
    """Tokens of a split, read from the files."""
    return [token for file in sorted(path.glob(f"{split}-*.tokens.npy")) for token in np.load(file).tolist()]


def take(stream, n: int) -> list[list[list[int]]]:
    """Rows of the next n batches, each with its last target; the targets are the tokens shifted by one."""
    batches = []
    for _ in range(n):
        batch = next(stream)
        tokens, targets = np.asarray(batch.tokens), np.asarray(batch.targets)
        assert tokens.dtype == targets.dtype == np.int32
        assert tokens.shape == targets.shape
        np.testing.assert_array_equal(targets[:, :-1], tokens[:, 1:])
        batches.append(np.concatenate([tokens, targets[:, -1:]], axis=1).tolist())
    return batches


def rows_of(stream, n: int) -> list[tuple[int, ...]]:
    """The next n rows; n is a multiple of the rows of a batch."""
    rows: list[tuple[int, ...]] = []
    while len(rows) < n:
        rows += map(tuple, take(stream, 1)[0])
    assert len(rows) == n
    return rows


def windows(text: list[int], first: int = 0, length: int = LENGTH) -> list[tuple[int, ...]]:
    """All windows of an epoch that begins at token `first` of the ring."""
    ring = text[first:] + text[:first] + text[first : first + 1]
    return [tuple(ring[i : i + length + 1]) for i in range(0, (len(text) - 1) // length * length, length)]


def test_the_first_epoch_is_every_window_of_the_text_once(tokens):
    """Kills: targets that are off by one, windows lost or twice (at the border of two shards above all), a remainder
    that is padded, and an order that is that of the text."""
    text = flat(tokens)
    expected = windows(text)
    sizes = np.cumsum([len(np.load(file)) for file in sorted(tokens.glob("train-*.tokens.npy"))])
    assert any(size % LENGTH > 0 for size in sizes[:-1])
    rows = rows_of(make(tokens, batch_size=1).train(), len(expected))
    assert Counter(rows) == Counter(expected)
    assert rows != expected


def test_slices_of_arrays_end_to_end_are_those_of_the_whole():
    """Kills: tokens lost or twice where a slice begins, ends or spans three parts and more; a slice beyond the end."""
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 99, n).astype(np.uint16) for n in (1, 3, 1, 1, 8, 2)]
    whole, joined = np.concatenate(parts), Concatenation([Concatenation(parts[:2]), *parts[2:]])
    assert len(joined) == len(whole)
    for start in range(len(whole) + 1):
        for stop in range(start, len(whole) + 3):
            assert joined[start:stop].tolist() == whole[start:stop].tolist()


def test_later_epochs_are_whole_too_begin_elsewhere_and_have_other_orders(tokens):
    """Kills: an epoch that is not a permutation, the first epoch again and again, and an end of the ring that is lost
    or joined with a token missing."""
    text = flat(tokens)
    n = len(windows(text))
    stream = make(tokens, batch_size=1).train()
    epochs = [rows_of(stream, n) for _ in range(4)]
    beginnings = {frozenset(Counter(windows(text, first)).items()): first for first in range(len(text))}
    firsts = [beginnings[frozenset(Counter(epoch).items())] for epoch in epochs]
    assert firsts[0] == 0
    assert len({first % LENGTH for first in firsts}) > 1
    assert len(set(firsts)) == 4
    orders = [[windows(text, first).index(row) for row in epoch] for first, epoch in zip(firsts, epochs, strict=True)]
    assert len({tuple(order) for order in orders}) == 4


def test_a_saved_cursor_resumes_exactly(tmp_path, tokens):
    """Kills: a cursor that counts batches made ahead, or that forgets the epoch or the source."""
    paths, weights = [tokens, write(tmp_path / "other", seed=5)], (2.0, 1.0)
    expected = take(make(*paths, weights=weights).train(), 34)
    for taken in (0, 1, 30):
        stream = make(*paths, weights=weights).train()
        take(stream, taken)
        state = json.loads(json.dumps(stream.get_state()))
        assert take(stream, 2) == expected[taken : taken + 2]
        restored = make(*paths, weights=weights).train()
        take(restored, 3)
        restored.set_state(state)
        assert take(restored, 4) == expected[taken : taken + 4]


def test_damaged_tokens_end_the_stream_and_the_validation(tokens):
    """Kills: batches of tokens whose bits have flipped, which are read in another thread; scores of such tokens."""
    for split in ("train", "valid"):
        file = tokens / f"{split}-00001.tokens.npy"
        whole = file.rename(file.with_suffix(".whole"))  # a stream's thread may still read it: not written over
        content = whole.read_bytes()
        file.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        with pytest.raises(OSError, match=rf"{split}-00001\.tokens\.npy is damaged"):
            take(make(tokens).train(), 30)
        whole.replace(file)


def test_a_cursor_of_other_tokens_is_refused(tmp_path, tokens):
    """Kills: a resume that goes on silently over other shards, or over the sources in another order."""
    other = write(tmp_path / "other", seed=5)
    state = make(tokens).train().get_state()
    assert state["fingerprint"].startswith("bytes-257:")
    with pytest.raises(ValueError, match=r"state fingerprint='bytes-257:\w{12}' must equal 'bytes-257:.*restore"):
        make(other).train().set_state(state)
    mixed = make(tokens, other, weights=(1, 1)).train().get_state()
    assert mixed["fingerprint"].startswith("bytes-257:")
    for paths in ([other, tokens], [tokens, tokens]):
        with pytest.raises(ValueError, match="state fingerprint="):
            make(*paths, weights=(1, 1)).train().set_state(mixed)


def test_rows_of_a_stream_are_those_of_the_whole_batch(tmp_path, tokens):
    """Kills: rows in another order, rows of another batch, and a cursor that means other batches to a process with
    other rows."""
    data = make(tokens, write(tmp_path / "other", seed=5), weights=(3, 1), batch_size=8)
    expected = take(data.train(), 20)
    for n in (1, 2, 4):
        streams = [data.train(range(p, 8, n)) for p in range(n)]
        parts = [take(stream, 5) for stream in streams]
        assert [[parts[row % n][i][row // n] for row in range(8)] for i in range(5)] == expected[:5]
        later = data.train([7, 6])
        later.set_state(streams[0].get_state())
        assert take(later, 1)[0] == [expected[5][7], expected[5][6]]


def test_a_mixture_has_exact_shares_and_each_source_its_own_epochs(tmp_path):
    """Kills: rounded weights, a short source that ends the stream or a long one that begins again with it."""
    short, long = write(tmp_path / "short", shards=2), write(tmp_path / "long", seed=5)
    data = make(short, long, weights=(0.7, 0.3), batch_size=10)
    known = [set(windows(flat(path), first)) for path in (short, long) for first in [0]]
    n = [len(windows(flat(path))) for path in (short, long)]
    stream = data.train()
    seen: list[list[tuple[int, ...]]] = [[], []]
    rings = [{w for first in range(len(flat(path))) for w in windows(flat(path), first)} for path in (short, long)]
    for _ in range(30):
        rows = rows_of(stream, 10)
        sources = [[row in ring for ring in rings].index(True) for row in rows]
        assert Counter(sources) == {0: 7, 1: 3}
        for source, row in zip(sources, rows, strict=True):
            seen[source].append(row)
    for source in range(2):
        assert len(seen[source]) > n[source]
        assert set(seen[source][: n[source]]) == known[source]


def test_sources_take_turns_evenly():
    """Kills: shares that are right in the long run only, rows given twice or left out, and weights cut to integers."""
    for weights in [(1,), (7, 3), (1, 2, 3), (50, 30, 20), (1, 1000), (0.7, 0.2, 0.1), (1, 2, 3, 4, 5, 6, 7, 8, 9)]:
        integers = as_integers(weights)
        total = sum(integers)
        np.testing.assert_allclose(np.array(integers) / total, np.array(weights) / sum(weights), rtol=1e-12)
        given = np.zeros(len(weights), int)
        for row in range(3 * total):
            assert np.all(np.abs(given - row * np.array(integers) / total) < len(weights))
            source, number = source_of(row, integers)
            assert number == given[source]
            given[source] += 1
        assert given.tolist() == [3 * integer for integer in integers]
        assert as_integers((0.5, 0.3, 0.2)) == (5, 3, 2)


def test_validation_is_each_sources_share_from_its_beginning(tmp_path, tokens):
    """Kills: windows of two sources, a share that ignores the weight, and a source that is not scored at all."""
    other = write(tmp_path / "other", seed=5)
    data = make(tokens, other, weights=(3, 1), valid_tokens=96, valid_lengths=(4, 6))
    texts = [flat(path, "valid") for path in (tokens, other)]
    inputs, targets = texts[0][:72] + texts[1][:24], texts[0][1:73] + texts[1][1:25]
    assert [(s.slices, s.n_batches) for s in data.valid()] == [({"length": 4}, 8), ({"length": 6}, 6)]
    for valid in data.valid():
        batches = [valid.batch(i) for i in range(valid.n_batches)]
        assert np.concatenate([np.asarray(b.tokens).ravel() for b in batches]).tolist() == inputs
        assert np.concatenate([np.asarray(b.targets).ravel() for b in batches]).tolist() == targets
    assert data.bytes_per_token == sum(target != END for target in targets) / 96
    rare = make(tokens, other, weights=(1000, 1), valid_tokens=70)
    assert sum(len(rare.valid()[0].batch(i).tokens) for i in range(rare.valid()[0].n_batches)) == 11


def test_baselines_are_exact_up_to_a_bound(tokens, monkeypatch):
    """Kills: counts of validation text, or that miss a token at the border of shards, and hours of counting."""
    text, data = flat(tokens), make(tokens)
    (valid,) = data.valid()
    targets = np.concatenate([np.asarray(valid.batch(i).targets) for i in range(valid.n_batches)]).ravel().tolist()
    p = [(text.count(w) + 1) / (len(text) + 257) for w in targets]
    scores = data.baselines()
    assert scores["unigram"].nats_per_token == pytest.approx(-np.mean(np.log(p)), rel=1e-12)
    monkeypatch.setattr("jaxzoo.data.statistics.ngram.LARGEST_TABLE", 256)
    assert data.baselines() == {"unigram": scores["unigram"]}
    monkeypatch.setattr(token_data, "MOST_COUNTED", len(text) - 1)
    assert data.baselines() == {}
    assert make(tokens).summary.endswith(f"; no baselines for more than {len(text) - 1} tokens")
    assert "no baselines" not in data.summary


def test_what_does_not_fit_is_refused_in_one_line(tmp_path, tokens):
    """Kills: a stream without a window, a split that is taken for another, and tokens read with a foreign tokenizer."""
    for fields in ({}, {"path": "a", "sources": (TokenSourceConfig(path="b"),)}):
        with pytest.raises(ValueError, match=r"path='a?' must name a token directory, or sources name"):
            TokenDataConfig(**fields)
    foreign = tmp_path / "foreign"
    write_tokens(foreign, {"train": [[([1] * 99, "")]], "valid": [[([1] * 99, "")]]}, vocab_size=9)
    lone = write(tmp_path / "lone", splits=("train",))
    n = len(flat(tokens))
    cases = [
        ((tmp_path / "none",), {}, r"none holds no token shards: manifest.json is missing; make them"),
        ((lone,), {}, r"lone has no split 'valid'; it has train"),
        (
            (tokens,),
            {"length": n, "valid_lengths": (7,)},
            rf"length={n} must be below the {n} tokens of the train split",
        ),
        ((tokens,), {"valid_lengths": (9, 25), "valid_tokens": 225}, r"valid_lengths=225 must be below the \d+ tokens"),
        (
            (tokens, foreign),
            {"weights": (1, 1)},
            r"one tokenizer, but .*foreign was made by 'test-9' and .*'bytes-257'",
        ),
        (
            (foreign,),
            {"expected_tokenizer": "bytes"},
            r"expected_tokenizer='bytes' is 'bytes-257', but .*'test-9'; name",
        ),
    ]
    for paths, fields, message in cases:
        with pytest.raises(ValueError, match=message) as raised:
            make(*paths, **fields)
        assert "\n" not in str(raised.value)
    assert make(tokens, expected_tokenizer="bytes").vocab_size == 257
