"""Labelled sequences as data. Kills: a label of another class, a damaged benchmark that is read."""

import hashlib

import numpy as np
import pytest

from jaxzoo.cli import data_build
from jaxzoo.data.corpus import documents
from jaxzoo.data.labelled_sequences import LabelledSequencesConfig, read_splits
from tests.data.corpus.test_building import read_back

TEXTS = {"train": {"gene": ["ACGT" * i for i in range(1, 30)], "other": ["TTG" * i for i in range(1, 40)]}}
TEXTS["test"] = {"gene": ["AAAC", "AAACC"], "other": ["GGGT"]}


def write_folders(path, texts=TEXTS):
    for split, classes in texts.items():
        for name, sequences in classes.items():
            (path / split / name).mkdir(parents=True)
            for i, text in enumerate(sequences):
                (path / split / name / f"{i:03d}.txt").write_text(text.lower() + "\n")
    return path


def write_csv(path):
    for split, classes in TEXTS.items():
        rows = [f"{text},{name}" for name, sequences in classes.items() for text in sequences]
        (path / f"{split}.csv").write_text("\n".join(["sequence,label", *rows]) + "\n")


def build(path, **fields):
    return LabelledSequencesConfig(path=str(path), length=12, **fields).build(batch_size=8, valid_batch_size=2)


def test_layouts_and_batches(tmp_path):
    """Kills: a class of another folder, padding before the end, an answer read at the padding, a mean over the padding,
    a row that is trained twice in an epoch, a cursor that loses its place, the wrong strand."""
    folders, files = tmp_path / "folders", tmp_path / "files"
    folders.mkdir(), files.mkdir()
    write_folders(folders), write_csv(files)
    classes, splits = read_splits(folders)
    assert classes == ["gene", "other"]
    assert {split: sorted(rows) for split, rows in read_splits(files)[1].items()} == {
        split: sorted(rows) for split, rows in splits.items()
    }
    texts = {text: label for split in ("train", "valid") for text, label in splits[split]}
    assert len(splits["valid"]) > 2
    assert sorted(texts) == sorted(text for found in TEXTS["train"].values() for text in found)
    data = build(folders)
    stream = data.train()
    batches = [next(stream) for _ in range(9)]
    other = data.train([3])
    other.set_state({**data.train().get_state(), "next": 5})
    np.testing.assert_array_equal(next(other).tokens[0], batches[5].tokens[3])
    seen = []
    for batch in batches[: len(splits["train"]) // 8]:
        for tokens, target, position in zip(
            *map(np.asarray, (batch.tokens, batch.targets, batch.positions)), strict=True
        ):
            end = int(position[0])
            assert (tokens[end:] == 5).all()
            assert (tokens[:end] < 5).all()
            seen.append("".join("ACGTN"[i] for i in tokens[:end]))
            matching = {
                label for text, label in texts.items() if seen[-1] in text and len(seen[-1]) == min(len(text), 11)
            }
            assert int(target[0]) in matching
    counts = np.unique([text for text in seen if len(text) < 11], return_counts=True)[1]
    assert (counts == 1).all()
    mean = next(build(folders, pool="mean").train())
    assert mean.positions is None
    np.testing.assert_array_equal(mean.pooled, np.asarray(batches[0].positions)[:, 0])
    flipped = next(build(folders, reverse_complements=True).train())
    ends = np.asarray(flipped.positions)[:, 0]
    changed = 0
    for row in range(8):
        now, before = (np.asarray(batch.tokens)[row, : ends[row]] for batch in (flipped, batches[0]))
        same = (now == before).all()
        assert same or (now == 3 - before[::-1]).all()
        changed += not same
    assert 0 < changed < 8
    test = build(folders, scored="test").valid()[0]
    assert test.n_batches == 2
    np.testing.assert_array_equal(test.batch(1).targets, [[1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: (p / "train" / "empty").mkdir(), "empty holds no .*every class needs a sequence"),
        (lambda p: (p / "test" / "gene").rename(p / "test" / "genes"), "class 'gene' is in one of train and test only"),
        (lambda p: (p / "test").rename(p / "tests"), r"must hold test/CLASS/\*.txt or test.csv, and has neither"),
        (lambda p: (p / "train" / "gene" / "000.txt").write_text(" "), "000.txt: the sequence is empty"),
        (lambda p: (p / "train" / "gene" / "000.txt").write_text("MKV"), "holds 'M', which must be one of"),
        (lambda p: (p / "test.csv").write_text("text,label\nA,1\n"), "test.csv:1: the header must have the columns"),
        (lambda p: (p / "test.csv").write_text("[" * 9000), r"test.csv:1: the header must have .*, got .{80}$"),
        (lambda p: (p / "test.csv").write_text("x" * 140_000), r"test.csv:1: the header must have .*, got .{80}$"),
        (lambda p: (p / "test.csv").write_bytes(b"sequence,label\nA,\xff\n"), "test.csv:[12]: no table in UTF-8"),
    ],
)
def test_damage(tmp_path, change, message):
    """Kills: a benchmark that is read as another one."""
    write_folders(tmp_path)
    change(tmp_path)
    with pytest.raises(ValueError, match=message):
        build(tmp_path)


def test_a_cursor_of_other_files(tmp_path):
    """Kills: a run that goes on with sequences that have changed."""
    stream = build(write_folders(tmp_path)).train()
    with pytest.raises(ValueError, match="restore the files"):
        stream.set_state({"fingerprint": "dna-6:0", "next": 3})


def test_as_a_data_set(tmp_path, capsys, monkeypatch):
    """Kills: a sequence, class or split that is lost, a wrong checksum, other sequences where a build is classified, a
    benchmark with unequal splits that is built, or read where it was built without the check."""
    (tmp_path / "in").mkdir()
    write_folders(tmp_path / "in")
    words = ["--source", "labelled", "--paths", f"{tmp_path}/in", "--out", f"{tmp_path}/out"]
    assert data_build.main(words) == 0
    place = tmp_path / "out" / "labelled_sequences" / "1.0.0"
    truth = {split: [(text, name) for name, found in TEXTS[split].items() for text in found] for split in TEXTS}
    assert read_back(place) == truth
    sums = dict(line.split()[::-1] for line in (place / "SHA256SUMS").read_text().splitlines())
    assert sums == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in place.glob("*.array_record*")}
    assert len(sums) == 2
    classes, splits = read_splits(tmp_path / "out")
    assert (classes, splits) == read_splits(tmp_path / "in")
    assert (classes, splits) == read_splits(place) == read_splits(place.parent)
    (tmp_path / "in" / "test" / "gene").rename(tmp_path / "in" / "test" / "genes")
    assert data_build.main([*words[:-1], f"{tmp_path}/new"]) == 2
    assert "class 'gene' is in one of train and test only" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(documents, "read_benchmark", lambda place: None)
    assert data_build.main([*words[:-1], f"{tmp_path}/new"]) == 0
    with pytest.raises(ValueError, match="class 'gene' is in one of train and test only"):
        read_splits(tmp_path / "new")
    monkeypatch.undo()
    assert data_build.main([*words, "--valid-fraction", "0.1"]) == 2
    assert "must not be given if folders" in capsys.readouterr().err
