"""`jaxzoo data-recall-statistics`. Kills: workers that run the whole command."""

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


@pytest.mark.full
def test_counts(data, tmp_path):
    """Kills: a worker that begins the command again; a table other than the one that is written."""
    words = ["--data", data, "--out", str(tmp_path / "out"), "--workers", "2", "--length", "64", "--n", "2", "4"]
    command = [sys.executable, "-m", "jaxzoo.data.recall_statistics", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out" / "table.md").read_text()
    assert done.stdout == f"{table}written: {tmp_path}/out\n"
    assert "| 4, without stop words | a | 6 |" in table


def test_tokens_of_another_tokenizer_are_refused(data, tmp_path, capsys):
    """Kills: stop words looked up in another vocabulary."""
    manifest = (tmp_path / "tokens" / "manifest.json").read_text().replace("bytes-257", "other")
    (tmp_path / "tokens" / "manifest.json").write_text(manifest)
    assert main(["--data", data, "--out", str(tmp_path / "out"), "--length", "64"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
