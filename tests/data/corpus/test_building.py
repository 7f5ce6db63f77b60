"""Building tensorflow-datasets directories. Kills: a document lost, doubled or moved by workers or a kill."""

import contextlib
import functools
import hashlib
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from jaxzoo.data.corpus import building
from jaxzoo.data.corpus.building import Build, BuildConfig

Row = tuple[str, str]
"""Text and subset."""


def build(config, out, **options):
    """Builds a data set."""
    return Build(config, out).run(**options)


def rows(seed: int, n: int, *, longest: int = 400) -> list[Row]:
    rng = random.Random(seed)
    words = ["alpha", "beta", "gämma", "delta\n", "\U0001f600"]
    return [(" ".join(rng.choices(words, k=rng.randint(1, longest))), rng.choice(["A", "B b"])) for _ in range(n)]


def write_pile(file: Path, documents: list[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(
        json.dumps({"text": text, "meta": {"pile_set_name": subset}}).encode() + b"\n" for text, subset in documents
    )
    half = len(data) // 2
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    file.write_bytes(compress(data[:half]) + compress(data[half:]) if file.suffix == ".zst" else data)


def read_back(directory: Path) -> dict[str, list[Row]]:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    return {
        split: [(row["text"].decode(), row["subset"].decode()) for row in builder.as_data_source(split)]
        for split in builder.info.splits
    }


def tree(directory: Path) -> dict[str, bytes]:
    return {
        file.relative_to(directory).as_posix(): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


def counts(documents: list[Row]) -> Mapping[str, Mapping[str, int]]:
    found = {}
    for subset in sorted({subset for _, subset in documents}):
        texts = [text for text, other in documents if other == subset]
        found[subset] = {"documents": len(texts), "bytes": sum(len(text.encode()) for text in texts)}
    return found


@pytest.fixture(scope="module")
def pile(tmp_path_factory) -> Path:
    """Three files of training, of which two are small enough to share a piece, and one of validation."""
    path = tmp_path_factory.mktemp("pile")
    for i, n in enumerate((2500, 90, 60)):
        write_pile(path / "train" / f"{i:02}.jsonl.zst", rows(i, n))
    write_pile(path / "val.jsonl.zst", rows(9, 50))
    return path


@pytest.fixture(scope="module")
def config(pile) -> BuildConfig:
    return BuildConfig(source="pile", paths=f"{pile}/train/*", valid_paths=f"{pile}/val.jsonl.zst", max_shard_mb=1)


@pytest.fixture(scope="module")
def built(config, tmp_path_factory) -> Path:
    """Directory of a build by one worker without interruption."""
    out = tmp_path_factory.mktemp("built") / "out"
    assert build(config, out).is_new
    return out


def test_tensorflow_datasets_reads_it(built, pile):
    """Kills: a document lost, doubled, changed or out of its order; a wrong subset, count or split; endless shards."""
    directory = built / "the_pile" / "1.0.0"
    truth = {"train": [row for i, n in enumerate((2500, 90, 60)) for row in rows(i, n)], "valid": rows(9, 50)}
    assert read_back(directory) == truth
    metadata = json.loads((directory / "metadata.json").read_text())
    assert metadata["subsets"] == {split: counts(documents) for split, documents in truth.items()}
    assert metadata["skipped"] == {"lines": 0, "files": 0, "empty": 0, "places": []}
    info = json.loads((directory / "dataset_info.json").read_text())
    (train,) = [split for split in info["splits"] if split["name"] == "train"]
    lengths = list(map(int, train["shardLengths"]))
    assert len(lengths) > 3
    sizes = [len(text.encode()) for text, _ in truth["train"]]
    for i, length in enumerate(lengths):
        start = sum(lengths[:i])
        assert sum(sizes[start : start + length - 1]) < 10**6
    files = [file for file in directory.iterdir() if "-train." in file.name]
    assert sorted(file.name for file in files) == [
        f"the_pile-train.array_record-{i:05d}-of-{len(lengths):05d}" for i in range(len(lengths))
    ]
    assert int(train["numBytes"]) == sum(file.stat().st_size for file in files)
    assert sorted(path.name for path in built.iterdir()) == ["build.json", "the_pile"]


@pytest.mark.slow
def test_no_moment_is_too_bad_to_be_stopped(tmp_path, monkeypatch):
    """Kills: what is counted, made or named twice after a stop between any two files that get their places."""
    for name, n in (("a", 500), ("b", 10)):
        write_pile(tmp_path / "in" / f"{name}.jsonl", rows(6, n))
        with (tmp_path / "in" / f"{name}.jsonl").open("a") as file:
            file.write("bad line at the end\n")
    config = BuildConfig(source="pile", paths=f"{tmp_path}/in", max_shard_mb=1, valid_fraction=0.1)
    monkeypatch.setattr(building, "MEGABYTE", 10**5)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # takes most of the time
    made = build(config, tmp_path / "whole", skip_bad=True)
    assert made.skipped.lines == 2
    assert made.total("train", "documents") + made.total("valid", "documents") == 510
    moves = {name: getattr(os, name) for name in ("replace", "rename")}
    moment, stopped = 0, True
    while stopped:
        moment, stopped, count = moment + 1, False, 0

        def moved(move, *places, moment=moment):
            nonlocal count, stopped
            count += 1
            if count == moment:
                stopped = True
                raise KeyboardInterrupt
            move(*places)

        for name, move in moves.items():
            monkeypatch.setattr(os, name, functools.partial(moved, move))
        out = tmp_path / f"stopped{moment}"
        with contextlib.suppress(KeyboardInterrupt):
            build(config, out, skip_bad=True)
        for name, move in moves.items():
            monkeypatch.setattr(os, name, move)
        assert build(config, out, skip_bad=True).skipped == made.skipped
        assert tree(out) == tree(tmp_path / "whole")
    assert moment > 25


def test_a_finished_build_is_left_alone(built, config, monkeypatch):
    """Kills: a build that is made again, and what a killed command has left forever."""
    before = {file: file.stat().st_mtime_ns for file in built.rglob("*")}
    (built / "work" / "notes").mkdir(parents=True)
    monkeypatch.setattr(building, "write_piece", None)
    assert not build(config, built).is_new
    assert {file: file.stat().st_mtime_ns for file in built.rglob("*") if file != built} == {
        file: time for file, time in before.items() if file != built
    }


def test_validation_by_the_hash_of_the_text(pile, tmp_path):
    """Kills: a side that depends on the order, the file or the worker; a duplicate on both sides; a wrong share."""
    documents = rows(3, 600, longest=10) + rows(4, 600, longest=200)
    write_pile(tmp_path / "one" / "a.jsonl", documents + documents[:100])
    write_pile(tmp_path / "two" / "a.jsonl", documents[::-1])
    one = build(BuildConfig(source="pile", paths=f"{tmp_path}/one", valid_fraction=0.2), tmp_path / "o1")
    two = build(BuildConfig(source="pile", paths=f"{tmp_path}/two", valid_fraction=0.2), tmp_path / "o2")
    valid = {row for row in documents if int(hashlib.sha256(row[0].encode()).hexdigest()[:12], 16) / 16**12 < 0.2}
    assert 0.1 < len(valid) / len(set(documents)) < 0.3
    for made in (one, two):
        found = read_back(made.directory)
        assert set(found["valid"]) == valid
        assert set(found["train"]) == set(documents) - valid
    assert one.total("valid", "documents") + one.total("train", "documents") == 1300


def test_other_sources(tmp_path):
    """Kills: fields that do not reach the reader, a test split that is split once more, empty documents in shards."""
    (tmp_path / "text" / "deep").mkdir(parents=True)
    for name, text in {"b.txt": "bee", "a.md": "ay\n", "deep/c": "c\u00e9", "empty": ""}.items():
        (tmp_path / "text" / name).write_text(text)
    made = build(BuildConfig(source="text", paths=str(tmp_path / "text"), valid_fraction=0), tmp_path / "out")
    assert made.directory == tmp_path / "out" / "text_corpus" / "1.0.0"
    assert read_back(made.directory) == {"train": [("ay\n", ""), ("bee", ""), ("c\u00e9", "")]}
    assert made.skipped.empty == 1
    (tmp_path / "own.jsonl").write_text('{"a": {"b": "text"}, "c": "subset"}\n')
    tests = [(f"test {i}", "other") for i in range(30)]
    lines = [json.dumps({"a": {"b": text}, "c": subset}) for text, subset in tests]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    own = BuildConfig(
        source="jsonl",
        paths=f"{tmp_path}/own.jsonl",
        test_paths=f"{tmp_path}/test.jsonl",
        valid_fraction=0.5,
        text_field="a.b",
        subset_field="c",
    )
    assert int(hashlib.sha256(b"text").hexdigest()[:12], 16) / 16**12 > 0.5
    assert read_back(build(own, tmp_path / "own").directory) == {"train": [("text", "subset")], "test": tests}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_damage_stops_the_build_or_is_counted(tmp_path, workers):
    """Kills: damage in a worker that ends in a traceback or a hang; what was skipped that nobody hears of."""
    good = rows(5, 30)
    for name in ("a", "b", "c"):
        write_pile(tmp_path / "in" / f"{name}.jsonl", good)
    damaged = tmp_path / "in" / "b.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b"\n", b"\nbad line\n", 2)[:-5])
    config = BuildConfig(source="pile", paths=f"{tmp_path}/in/*", max_shard_mb=1)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"b\.jsonl:2: not JSON"):
        build(config, out, workers=workers)
    assert out.exists() == bool(list(out.rglob("notes/*.json")))
    made = build(config, out, workers=workers, skip_bad=True)
    documents = [row for split in read_back(made.directory).values() for row in split]
    assert sorted(documents) == sorted(good + good[:-1] + good)
    assert (made.skipped.lines, made.skipped.files) == (3, 0)
    assert [place.split(" ")[0] for place in made.skipped.places] == ["b.jsonl:2:", "b.jsonl:4:", "b.jsonl:32:"]
    assert build(config, out).skipped == made.skipped


def test_refuses_what_it_did_not_write(built, config, pile, tmp_path):
    """Kills: a build that mixes with another one, or with files of the user's."""
    changes = {
        "valid_paths": (None, "valid_fraction is 0.0 there and 0.01 here"),
        "max_shard_mb": (2, "max_shard_mb is 1 there and 2 here"),
        "source": ("slimpajama", "source is 'pile' there and 'slimpajama' here"),
        "paths": (f"{pile}/train/00*", "inputs.train.bytes is [0-9]+ there and [0-9]+ here"),
    }
    for field, (value, message) in changes.items():
        other = BuildConfig(**{**vars(config), field: value})
        with pytest.raises(ValueError, match=message):
            Build(other, built)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"holds 'notes\.txt', which this command did not write"):
        Build(config, tmp_path / "mine")
    with pytest.raises(ValueError, match="must be a directory"):
        Build(config, tmp_path / "mine" / "notes.txt")
    (tmp_path / "mine" / "build.json").write_text("{}")
    with pytest.raises(ValueError, match=r"build\.json: is damaged: its checksum is missing"):
        Build(config, tmp_path / "mine")
    twice = BuildConfig(source="pile", paths=f"{pile}/train/*", valid_paths=f"{pile}/train/00.jsonl.zst")
    with pytest.raises(ValueError, match="is in --paths and in --valid-paths"):
        Build(twice, tmp_path / "new")
    assert not (tmp_path / "new").exists()
