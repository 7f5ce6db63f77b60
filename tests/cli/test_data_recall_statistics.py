"""`python -m jaxzoo.data.recall_statistics`: what it prints, what it refuses."""

import subprocess
import sys

import pytest

from jaxzoo.cli.data_recall_statistics import main
from tests.data.shards import BYTES, write_tokens


@pytest.fixture(name="data")
def token_directory(tmp_path):
    text = "Tim Rice wrote it with Elton John; Tim Rice and Elton John. " * 4
    shards = [[(list(text[i:].encode()), "a")] for i in range(2)]
    write_tokens(tmp_path / "tokens", {"train": shards}, tokenizer=BYTES)
    return str(tmp_path / "tokens")


@pytest.mark.slow
def test_counts(data, tmp_path):
    """Through the door, with workers."""
    words = ["--data", data, "--out", str(tmp_path / "out"), "--workers", "2", "--length", "64", "--n", "2", "4"]
    command = [sys.executable, "-m", "jaxzoo.data.recall_statistics", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 shards" in done.stderr.splitlines()[-1]
    table = (tmp_path / "out" / "table.md").read_text()
    assert done.stdout == f"{table}written: {tmp_path}/out\n"
    assert "| 4, without stop words | a | 6 |" in table


def test_refuses_in_one_line(data, tmp_path, monkeypatch, capsys):
    for words, line in [
        (["--data", "{data}", "--out", "x", "--length", "500"], "--length 500 must not be above 241"),
        (["--data", "{data}", "--out", "x", "--n", "0"], "--n 0 must be positive"),
        (["--data", "{data}", "--out", "x", "--split", "test"], "has no split 'test'; it has train"),
        (["--data", "{data}", "--out", "x", "--stop-words", "none"], "No such file or directory: 'none'"),
        (["--data", "{data}", "--out", "x", "--stopwords", "none"], "unknown option --stopwords"),
        (["--data", "{data}", "--out", "{data}"], "holds other results: kind is None there"),
    ]:
        monkeypatch.chdir(tmp_path)
        length = [] if "--length" in words else ["--length", "64"]
        assert main([word.format(data=data) for word in words] + length) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1
        assert line in said[0]
        assert not (tmp_path / "x").exists()


def test_tokens_of_another_tokenizer_are_refused(data, tmp_path, capsys):
    """Kills: stop words looked up in another vocabulary."""
    manifest = (tmp_path / "tokens" / "manifest.json").read_text().replace("bytes-257", "other")
    (tmp_path / "tokens" / "manifest.json").write_text(manifest)
    assert main(["--data", data, "--out", str(tmp_path / "out"), "--length", "64"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_help(capsys):
    assert main(["--help"]) == 0
    assert "--stop-words" in capsys.readouterr().out
