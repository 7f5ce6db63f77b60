"""`jaxzoo data-tokenize` and `train_tokenizer`. Kills: two commands that do not fit together."""

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
