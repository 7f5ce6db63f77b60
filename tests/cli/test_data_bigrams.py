"""`python -m jaxzoo.data.bigrams`: what it prints, what it refuses."""

import subprocess
import sys

import numpy as np
import pytest

from jaxzoo.cli.data_bigrams import main
from jaxzoo.data.statistics.bigram_counts import BigramCounts
from tests.data.shards import random_documents, write_tokens


@pytest.fixture(name="data")
def token_directory(tmp_path):
    shards = [random_documents(np.random.default_rng(i), 5, n_ids=9, longest=40) for i in range(3)]
    write_tokens(tmp_path / "tokens", {"train": shards}, vocab_size=10)
    return str(tmp_path / "tokens")


@pytest.mark.full
def test_counts(data, tmp_path):
    """Through the door, with workers: kills a worker that starts the command again when it imports the main module."""
    words = ["--data", data, "--out", str(tmp_path / "counts"), "--workers", "2", "--memory-mb", "1"]
    command = [sys.executable, "-m", "jaxzoo.data.bigrams", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line.split(":")[0] for line in done.stderr.splitlines()][-1]) == (0, "merge")
    manifest = BigramCounts(tmp_path / "counts").manifest
    assert done.stdout == f"{manifest.total:,} pairs, {manifest.distinct} distinct: {tmp_path}/counts\n"


def test_says_what_was_counted_before(data, tmp_path, capsys):
    words = ["--data", data, "--out", str(tmp_path / "counts")]
    assert (main(words), main(words)) == (0, 0)
    first, second = capsys.readouterr().out.splitlines()
    assert second == first.replace(": ", "; counted before: ")


def test_refuses_in_one_line(data, tmp_path, monkeypatch, capsys):
    """Kills: a traceback, or a directory that was made for nothing."""
    for words, line in [
        (["--out", "x"], "--data is required; see --help"),
        (["--data", "{data}", "--out", "x", "--splits", "a"], "unknown option --splits; did you mean --split?"),
        (["--data", "{data}", "--out", "x", "--split", "test"], "{data} has no split 'test'; it has train"),
        (["--data", "nothing", "--out", "x"], "nothing holds no token shards: manifest.json is missing"),
        (["--data", "{data}", "--out", "x", "--memory-mb", "0"], "--memory-mb 0 must be positive"),
        (["--data", "{data}", "--out", "{data}"], "--out {data} holds other results: kind is None there"),
    ]:
        monkeypatch.chdir(tmp_path)
        assert main([word.format(data=data) for word in words]) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1
        assert line.format(data=data) in said[0]
        assert not (tmp_path / "x").exists()


@pytest.mark.full
def test_help(capsys):
    assert main(["--help"]) == 0
    assert "--memory-mb INT" in capsys.readouterr().out
