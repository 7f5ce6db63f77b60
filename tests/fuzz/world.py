"""World of small files, made by the commands themselves, and all files in it that a command reads."""

import bz2
import contextlib
import gzip
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.fuzz import second_world
from tests.fuzz.trial import Case

ROWS = [
    {"text": f"{word} and {word} or {i}; never odd or even, {i} times a word. " * 4, "meta": {"subset": "ab"[i % 2]}}
    for i, word in enumerate(("one", "two", "three", "four", "five", "six") * 4)
]
BUILD = ("--source", "jsonl", "--paths", "in", "--subset-field", "meta.subset", "--valid-fraction", "0.3")
CONFIG = """
from jaxzoo.train.config import *
from jaxzoo.mixers import AttentionConfig, BaseConvConfig

config = RunConfig(
    model=LanguageModelConfig(
        vocab_size=257, d_model=8, n_layers=2, max_length=32, pattern=(BaseConvConfig(), AttentionConfig())
    ),
    data=TokenDataConfig(path="tokens", length=16, valid_tokens=64),
    train=TrainConfig(batch_size=8, valid_batch_size=4, steps=2, eval_every=0),
)
"""


def make_world(place: Path) -> None:
    """Makes the files."""
    (place / "in").mkdir(parents=True)
    (place / "outside").mkdir()
    lines = [json.dumps(row).encode() + b"\n" for row in ROWS]
    (place / "in" / "a.jsonl").write_bytes(b"".join(lines[:6]))
    (place / "in" / "b.jsonl.zst").write_bytes(
        zstandard.ZstdCompressor(write_checksum=True).compress(b"".join(lines[6:12]))
    )
    (place / "in" / "c.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[12:18])))
    (place / "in" / "d.jsonl.bz2").write_bytes(bz2.compress(b"".join(lines[18:])))
    (place / "words.txt").write_text("and\nor\n")
    (place / "records.jsonl").write_text('{"text": "a: one\\nb: two\\na:", "value": "one"}\n' * 2)
    (place / "config.py").write_text(CONFIG)
    status = "\n\n".join(f"Package: p{i}\nVersion: {i}.{i * 7919}\nSection: s{i % 9}-{i}" for i in range(120))
    (place / "status").write_text(status + "\n")
    second_world.make_files(place)
    with contextlib.chdir(place):
        for command, words in (*COMMANDS, *second_world.COMMANDS):
            assert importlib.import_module(f"jaxzoo.cli.{command}").main(words.split()) == 0, words
        _make_unfinished()


COMMANDS = (
    ("data_build", " ".join((*BUILD, "--out", "built"))),
    ("data_train_tokenizer", "--data built --vocab-size 300 --out bpe"),
    ("data_tokenize", "--data built --tokenizer bytes --out tokens"),
    ("data_tokenize", "--data built --tokenizer bpe --out bpe_tokens"),
    ("data_bigrams", "--data tokens --out counts"),
    ("data_recall_statistics", "--data bpe_tokens --length 32 --n 2 --stop-words words.txt --out statistics"),
    ("tasks_records", "--dpkg-status status --documents 20 --out extraction"),
    ("train", "--config config.py --run-dir run"),
    ("evaluate", "--run run --data . --tasks records --scorer own --out evaluation.json"),
)


def _make_unfinished() -> None:
    """Makes work that was stopped before its last step."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for command, words, what in (
        ("data_build", [*BUILD, "--out", "half_built"], "jaxzoo.data.corpus.building.finish"),
        (
            "data_tokenize",
            ["--data", "built", "--tokenizer", "bpe", "--out", "half_tokens"],
            "jaxzoo.data.tokens.tokenization.write_manifest",
        ),
        (
            "data_bigrams",
            ["--data", "tokens", "--out", "half_counts"],
            "jaxzoo.data.statistics.bigram_counts.merge",
        ),
        (
            "data_recall_statistics",
            ["--data", "tokens", "--length", "32", "--n", "2", "--out", "half_statistics"],
            "jaxzoo.data.statistics.corpus_recall.summarise",
        ),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(what, stop)
            assert importlib.import_module(f"jaxzoo.cli.{command}").main(words) == 130


def cases(world: Path) -> Iterator[Case]:
    """Yields each file with each command that reads it."""
    build = ("data_build", BUILD)
    tokenize = ("data_tokenize", ["--data", "built", "--tokenizer", "bpe"])
    bigrams = ("data_bigrams", ["--data", "tokens"])
    statistics = (
        "data_recall_statistics",
        ["--data", "bpe_tokens", "--length", "32", "--n", "2", "--stop-words", "words.txt"],
    )
    half_statistics = ("data_recall_statistics", ["--data", "tokens", "--length", "32", "--n", "2"])
    slices = ("evaluate", ["--slices", "recall", "--run", "run", "--bigrams", "counts", "--at-most", "3"])
    table = [
        ("in/*", *build, "new", False),
        ("words.txt", *statistics, "new", False),
        ("status", "tasks_records", ["--dpkg-status", "status", "--documents", "20"], "new", False),
        (
            "records.jsonl",
            "evaluate",
            ["--run", "run", "--data", ".", "--tasks", "records", "--scorer", "own"],
            "new.json",
            False,
        ),
        (
            "evaluation.json",
            "evaluate",
            ["--run", "run", "--data", ".", "--tasks", "records", "--scorer", "own", "--resume"],
            "evaluation.json",
            True,
        ),
        ("built/**/*", *build, "built", True),
        ("half_built/*", *build, "half_built", True),
        ("half_built/work/[np]*/*", *build, "half_built", True),
        ("half_built/work/dataset/*", *build, "half_built", False),  # array_record's checksums are read by tokenize
        ("built/**/*", *tokenize, "new", True),
        ("built/**/*", "data_train_tokenizer", ["--data", "built", "--vocab-size", "300"], "new", True),
        ("bpe/*", *tokenize, "new", False),
        ("bpe_tokens/*", *tokenize, "bpe_tokens", True),
        ("half_tokens/**/*", *tokenize, "half_tokens", True),
        ("tokens/*", *bigrams, "new", True),
        ("counts/*", *bigrams, "counts", True),
        ("half_counts/**/*", *bigrams, "half_counts", True),
        ("bpe_tokens/*", *statistics, "new", True),
        ("statistics/*", *statistics, "statistics", True),
        ("half_statistics/**/*", *half_statistics, "half_statistics", True),
        (
            "extraction/manifest.json",
            "tasks_records",
            ["--dpkg-status", "status", "--documents", "20", "--overwrite"],
            "extraction",
            True,
        ),
        ("counts/*", *slices, "new", True),
        ("tokens/*", "evaluate", ["--run", "run"], "new.json", True),
        ("run/**/*", "evaluate", ["--run", "run"], "new.json", True),
        ("run/**/*", "generate", ["--run", "run", "--prompt", "one", "--max-tokens", "4"], "", True),
        ("tokens/*", "train", ["--config", "config.py", "--run-dir", "new", "--overwrite"], "", True),
        *second_world.table(),
    ]
    for pattern, command, words, out, is_ours in table:
        for file in sorted(world.glob(pattern)):
            name = str(file.relative_to(world))
            if file.is_file() and not name.endswith(".lock"):
                given = (*words, "--out", out) if out else tuple(words)
                yield Case(f"{name} {command} {out}", name, command, given, is_ours)
