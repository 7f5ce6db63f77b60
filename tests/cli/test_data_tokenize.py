"""`python -m jaxzoo.data.tokenize` and `python -m jaxzoo.data.train_tokenizer` on their command lines."""

from pathlib import Path

import pytest

from jaxzoo.cli.data_tokenize import main
from jaxzoo.cli.data_train_tokenizer import main as learn
from jaxzoo.data.tokens.token_shards import TokenDirectory
from tests.data.built import build

DOCUMENTS = [(f"never odd or even, {i} times a word; " * (i % 9), "ab"[i % 2]) for i in range(90)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("data"), {"train": [*DOCUMENTS, (b"\xff", "a")], "valid": DOCUMENTS[:9]})


def refused(capsys, command, *words: str) -> str:
    assert command(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("error: ")


def test_from_documents_to_tokens(data, tmp_path, capsys):
    """Kills: commands that do not fit together, counts that are not the documents', work that is done twice."""
    bpe, out = tmp_path / "bpe", tmp_path / "tokens"
    assert learn(["--data", str(data), "--vocab-size", "300", "--out", str(bpe / "tokenizer.json")]) == 0
    captured = capsys.readouterr()
    assert "300 ids learnt from 91 documents" in captured.out
    assert "warning" not in captured.err
    words = ["--data", str(data.parent.parent), "--tokenizer", str(bpe), "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    n_bytes = sum(len(text) for text, _ in DOCUMENTS) + 3
    assert TokenDirectory(out).fingerprint in said
    for part in ("train: 91 documents", f"{n_bytes:,} bytes", "valid: 9 documents", "a: 46 documents"):
        assert part in said
    assert "10 of its documents are empty" in said
    assert "1 of its documents are not UTF-8" in said
    assert main(words) == 0
    assert capsys.readouterr().out == f"{out}: is finished already\n"


def test_one_line_for_a_mistake(data, tmp_path, capsys):
    """Kills: a traceback, and a directory that is made before the mistake is seen."""
    for words, message in [
        (["--data", "/no/such"], "--data /no/such is no directory"),
        (
            ["--tokenizer", "gpt2"],
            "--tokenizer gpt2: gpt2 does not exist; a tokenizer is 'bytes', a",
        ),
        (["--end-of-text", "</s>"], "--tokenizer bytes: --end-of-text '</s>' is for BPE"),
        (["--workers", "0"], "--workers 0 must be positive"),
        (["--worker", "2"], "unknown option --worker; did you mean --workers?"),
        (["stray"], "unexpected argument 'stray'"),
    ]:
        given = {"--data": str(data), "--tokenizer": "bytes", "--out": str(tmp_path / "out")}
        rest = [word for name, value in given.items() if name not in words for word in (name, value)]
        assert message in refused(capsys, main, *rest, *words)
        assert not (tmp_path / "out").exists()
