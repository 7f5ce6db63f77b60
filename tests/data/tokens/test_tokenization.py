"""Tokenization of built data. Kills: documents lost, doubled or moved by workers or a kill."""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxzoo.data.corpus.built import BuiltData
from jaxzoo.data.tokenizer import ByteTokenizer
from jaxzoo.data.tokens import tokenization
from jaxzoo.data.tokens.token_shards import Counts, TokenDirectory
from jaxzoo.data.tokens.tokenization import Tokenization
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer, save_tokenizer
from jaxzoo.data.tokens.tokenizer_training import learn_tokenizer
from tests.data.built import build

WORDS = ("never", "odd", "or", "even", "漢字", "naïve", "\n\n", "<|endoftext|>", "😀")


def texts(seed: int, n: int) -> list[tuple[str | bytes, str]]:
    rng = np.random.default_rng(seed)
    documents = [" ".join(rng.choice(WORDS, rng.integers(1, 60))) for _ in range(n)]
    return [(text, "ab"[i % 2]) for i, text in enumerate(documents)]


ODD: list[tuple[str | bytes, str]] = [("", "a"), (b"\xffab\xed\xa0\x80", "b")]
TRAIN, VALID = texts(0, 200) + ODD, texts(1, 20)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Two splits of three files each, with an empty document and one that is no UTF-8."""
    return build(tmp_path_factory.mktemp("data"), {"train": TRAIN, "validation": VALID})


@pytest.fixture(scope="module")
def bpe(data, tmp_path_factory) -> Path:
    """Directory of a small BPE tokenizer."""
    directory = tmp_path_factory.mktemp("bpe")
    save_tokenizer(learn_tokenizer(BuiltData(data), vocab_size=300, max_bytes=10**6).tokenizer, directory)
    return directory


def digests(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}


@pytest.fixture(scope="module")
def tokens(data, bpe, tmp_path_factory) -> Path:
    """Token directory made by one process without interruption."""
    out = tmp_path_factory.mktemp("tokens") / "out"
    Tokenization(data, load_tokenizer(bpe), out).run()
    return out


@pytest.mark.parametrize("place", ["bytes", "bpe"])
def test_every_document_is_in_its_place(place, data, bpe, tmp_path):
    """Kills: lost, doubled or moved documents, wrong subsets, bytes counted after the tokenizer, a lost last batch."""
    tokenizer = load_tokenizer("bytes" if place == "bytes" else bpe)
    directory = Tokenization(data, tokenizer, tmp_path / "out").run()
    assert list(directory.splits) == ["train", "valid"]
    for split, documents in (("train", TRAIN), ("valid", VALID)):
        shards = directory.shards(split)
        assert len(shards) == 3
        found = [
            (tokenizer.to_bytes(np.asarray(shard.tokens[a:b])), shard.subsets[subset], int(shard.tokens[b - 1]))
            for shard in shards
            for a, b, subset in zip(shard.starts, [*shard.starts[1:], len(shard.tokens)], shard.subset_ids, strict=True)
        ]
        raw = [(text.encode() if isinstance(text, str) else text, subset) for text, subset in documents]
        expected = [(text.decode("utf-8", errors="replace").encode(), subset) for text, subset in raw]
        assert found == [(*document, tokenizer.end_of_text) for document in expected]
        for subset in "ab":
            mine = [text for text, name in expected if name == subset]
            n_tokens = sum(len(tokenizer.encode(text.decode())) + 1 for text in mine)
            assert directory.split(split).subsets[subset] == Counts(len(mine), sum(map(len, mine)), n_tokens)
    odd = {name: [(n.empty, n.repaired) for n in split.shards.values()] for name, split in directory.splits.items()}
    assert [tuple(map(sum, zip(*odd[name], strict=True))) for name in ("train", "valid")] == [(1, 1), (0, 0)]


def test_batches_are_bounded_and_change_nothing(data, bpe, tokens, tmp_path, monkeypatch):
    """Kills: memory that grows with the shard, and tokens that depend on what they were encoded with."""
    monkeypatch.setattr(tokenization, "BATCH_BYTES", 100)
    sizes = []
    tokenizer = load_tokenizer(bpe)
    encode = type(tokenizer).encode_batch
    monkeypatch.setattr(type(tokenizer), "encode_batch", lambda t, some: sizes.append(len(some)) or encode(t, some))
    Tokenization(data, tokenizer, tmp_path / "out").run()
    assert max(sizes) < 60
    assert digests(tmp_path / "out") == digests(tokens)


def test_the_tokenizer_comes_back_from_the_token_directory(tokens, bpe, data, tmp_path):
    """Kills: a run whose tokenizer is another one after its training, and bytes that need a file."""
    assert load_tokenizer(tokens).fingerprint == load_tokenizer(bpe).fingerprint
    assert TokenDirectory(tokens).fingerprint.startswith(f"{load_tokenizer(tokens).fingerprint}:")
    Tokenization(data, ByteTokenizer(), tmp_path / "bytes").run()
    assert isinstance(load_tokenizer(tmp_path / "bytes"), ByteTokenizer)
    assert not list((tmp_path / "bytes").glob("tokenizer*"))
    shutil.copytree(tokens, tmp_path / "copy")
    content = json.loads((tmp_path / "copy" / "tokenizer.json").read_text())
    content["model"]["merges"].pop()
    (tmp_path / "copy" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"holds tokens of the tokenizer 'bpe-300-.*restore its tokenizer\.json"):
        load_tokenizer(tmp_path / "copy")


def command(data: Path, bpe: Path, out: Path, *flags: str) -> list[str]:
    words = ["--data", str(data), "--tokenizer", str(bpe), "--out", str(out), *flags]
    return [sys.executable, "-m", "jaxzoo.data.tokenize", *words]


def test_killed_at_any_point_it_goes_on_to_the_same_bytes(bpe, tmp_path, monkeypatch):
    """Kills: half a file taken for a whole one, and remains of killed workers among the results."""

    class Killed(BaseException):
        pass

    data = build(tmp_path / "data", {"train": texts(4, 9)}, n_shards=2)
    whole, out = tmp_path / "whole", tmp_path / "out"
    Tokenization(data, load_tokenizer(bpe), whole).run()
    replace, left, seen = os.replace, 0, set()

    def die_later(source, target):
        nonlocal left
        if Path(target).parent != out:
            return replace(source, target)
        if left == 0:
            shutil.copy(source, f"{target}.00000000.tmp")  # what a kill leaves, and an exception would clear away
            seen.add(Path(target).name)
            raise Killed
        left -= 1
        return replace(source, target)

    monkeypatch.setattr(os, "replace", die_later)
    for n_renames in range(len(digests(whole))):
        shutil.rmtree(out, ignore_errors=True)
        left = n_renames
        with pytest.raises(Killed):
            Tokenization(data, load_tokenizer(bpe), out).run()
        left = -1
        Tokenization(data, load_tokenizer(bpe), out).run()
        assert digests(out) == digests(whole)
    assert seen == set(digests(whole))


def test_other_data_another_tokenizer_and_other_files_are_refused(data, bpe, tokens, tmp_path):
    """Kills: shards of two corpora or two tokenizers in one directory, and files of others overwritten."""
    before = digests(tokens)
    with pytest.raises(ValueError, match=r"holds other results: tokenizer\.[a-z_]+ is .* there and .* here"):
        Tokenization(data, ByteTokenizer(), tokens)
    other = build(tmp_path / "data", {"train": texts(3, 30)})
    with pytest.raises(ValueError, match=r"holds other results: data\.splits\."):
        Tokenization(other, load_tokenizer(bpe), tokens)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match=r"holds 'thesis\.tex', which this command did not write"):
        Tokenization(data, ByteTokenizer(), tmp_path / "mine")
    with pytest.raises(ValueError, match="must be a directory"):
        Tokenization(data, ByteTokenizer(), tmp_path / "mine" / "thesis.tex")
    assert digests(tokens) == before
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("other", "kinds", "message"),
    [
        ("valid-00000", [".json"], "train-00000"),
        (
            "valid-00000",
            [".json", ".tokens.npy", ".starts.npy", ".subsets.npy"],
            r"counts \d+ documents, and",
        ),
        ("train-00001", [".json"], "train-00000"),
    ],
)
def test_a_shard_of_another_tokenization_is_refused(other, kinds, message, data, bpe, tokens, tmp_path):
    """Kills: a note of other data that counts as a finished shard, which training notices much later."""
    work = tmp_path / "out"
    shutil.copytree(tokens, work)
    (work / "manifest.json").unlink()
    for kind in kinds:
        shutil.copyfile(tokens / f"{other}{kind}", work / f"train-00000{kind}")
    with pytest.raises(ValueError, match=message):
        Tokenization(data, load_tokenizer(bpe), work).run()
    assert not (work / "manifest.json").exists()


def test_features_of_other_classes_are_not_imported(data, tmp_path, monkeypatch):
    """Kills: a data directory that runs code: tensorflow-datasets imports the classes that features.json names."""
    (tmp_path / "intruder.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    content = json.loads((copy / "features.json").read_text())
    text = content["featuresDict"]["features"]["text"]
    inner = {**text, "text": {"pythonClassName": "intruder.Text"}}
    cases = [
        {**content, "pythonClassName": "intruder.Dict"},
        {**content, "type": "intruder.Dict"},
        {**content, "python_class_name": "intruder.Dict"},
        {**content, "featuresDict": {"features": {"text": {**text, "pythonClassName": "intruder.Text"}}}},
        {**content, "featuresDict": {"features": {"text": {**text, "sequence": {"feature": inner}}}}},
        {"type": "intruder.Dict", "content": {}},
        {**content, "featuresDict": {"features": {"text": inner}}},
    ]
    for case in cases:
        (copy / "features.json").write_text(json.dumps(case))
        with pytest.raises(ValueError, match=r"features\.json"):
            BuiltData(copy)
    (copy / "features.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"features\.json: must be nested at most"):
        BuiltData(copy)


def test_learning_is_deterministic_and_says_what_it_learnt_from(data):
    """Kills: merges that depend on hashing, a sample of the beginning alone, an alphabet without rare bytes."""
    built = BuiltData(data)
    learnt = learn_tokenizer(built, vocab_size=300, max_bytes=10**6)
    again = learn_tokenizer(built, vocab_size=300, max_bytes=10**6)
    assert learnt.tokenizer.content == again.tokenizer.content
    assert learnt.documents == 202
    assert learnt.tokenizer.vocab_size == 300
    assert learnt.tokenizer.end_of_text == 0
    some = learn_tokenizer(built, vocab_size=300, max_bytes=5000)
    assert 5000 <= some.bytes < 6000
    text = "".join(map(chr, range(0x300)))
    assert some.tokenizer.to_bytes(some.tokenizer.encode(text)) == text.encode()
    full = learn_tokenizer(built, vocab_size=5000, max_bytes=10**6)
    assert full.tokenizer.vocab_size < 5000
    with pytest.raises(ValueError, match="vocab_size=256 must be at least 257"):
        learn_tokenizer(built, vocab_size=256, max_bytes=1)
