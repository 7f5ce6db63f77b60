"""`python -m jaxzoo.data.tokenize` and `python -m jaxzoo.data.train_tokenizer` on their command lines."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxzoo.cli.data_tokenize import TokenizeCommand, main
from jaxzoo.cli.data_train_tokenizer import TrainTokenizerCommand, main as learn
from jaxzoo.cli.flags import flags_of
from jaxzoo.data.tokens.token_shards import TokenDirectory
from jaxzoo.data.tokens.tokenization import Tokenization
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
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


@pytest.mark.full
def test_end_of_text_is_named_on_the_command_line(data, tmp_path, capsys):
    """Kills: a flag that is dropped, and a token directory whose tokenizer ends documents with another token."""
    learn(["--data", str(data), "--vocab-size", "300", "--out", str(tmp_path / "bpe")])
    capsys.readouterr()
    file = tmp_path / "bpe" / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 300, "content": "<stop>"})
    file.write_text(json.dumps(content))
    words = ["--data", str(data), "--tokenizer", str(tmp_path / "bpe"), "--out", str(tmp_path / "out")]
    line = refused(capsys, main, *words, "--end-of-text", "<none>")
    assert "has no token '<none>' to end a document with" in line
    assert main([*words, "--end-of-text", "<stop>"]) == 0
    assert TokenDirectory(tmp_path / "out").tokenizer.end_of_text == load_tokenizer(tmp_path / "out").end_of_text == 300
    assert int(TokenDirectory(tmp_path / "out").shards("valid")[0].tokens[-1]) == 300


def test_a_vocabulary_that_is_not_reached_is_said(data, tmp_path, capsys):
    """Kills: a smaller model than was asked for, in silence."""
    assert learn(["--data", str(data), "--vocab-size", "5000", "--out", str(tmp_path)]) == 0
    assert "warning: --vocab-size 5000 was not reached" in capsys.readouterr().err


@pytest.mark.slow
def test_the_same_bytes_whatever_the_threads(data, tmp_path):
    """Kills: a vocabulary that depends on hashing or on threads, which differ from process to process."""
    seen = set()
    for threads in ("1", "3"):
        out = tmp_path / threads
        words = ["--data", str(data), "--vocab-size", "320", "--out", str(out)]
        script = f"import sys; from jaxzoo.cli.data_train_tokenizer import main; sys.exit(main({words!r}))"
        environment = {"RAYON_NUM_THREADS": threads, "PYTHONPATH": ":".join(sys.path), "PATH": ""}
        subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True)
        seen.add(hashlib.sha256((out / "tokenizer.json").read_bytes()).hexdigest())
    assert len(seen) == 1


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


@pytest.mark.full
def test_one_line_where_the_place_is_taken(data, tmp_path, capsys):
    """Kills: a tokenizer or token shards that are overwritten."""
    (tmp_path / "x").write_text("x")
    base = ["--data", str(data), "--out"]
    assert "holds 'x', which this command did not write" in refused(
        capsys, main, *base, str(tmp_path), "--tokenizer", "bytes"
    )
    assert "must be a directory, or end in tokenizer.json" in refused(capsys, learn, *base, str(tmp_path / "x"))
    assert learn([*base, str(tmp_path / "bpe"), "--vocab-size", "300"]) == 0
    capsys.readouterr()
    assert "replace it with --overwrite" in refused(capsys, learn, *base, str(tmp_path / "bpe"))
    assert learn([*base, str(tmp_path / "bpe"), "--vocab-size", "280", "--overwrite"]) == 0
    assert main([*base, str(tmp_path / "out"), "--tokenizer", "bytes"]) == 0
    capsys.readouterr()
    assert "holds token shards" in refused(capsys, learn, *base, str(tmp_path / "out"), "--overwrite")
    assert "vocab_size=200 must be at least 257" in refused(
        capsys, learn, *base, str(tmp_path / "new"), "--vocab-size", "200"
    )
    assert not (tmp_path / "new").exists()


def test_one_line_for_a_damaged_file(data, tmp_path, capsys):
    """Kills: a traceback of the reader's library."""
    shutil.copytree(data, tmp_path / "data")
    file = tmp_path / "data" / "toy-train.array_record-00001-of-00003"
    file.write_bytes(file.read_bytes()[:300])
    words = ["--data", str(tmp_path / "data"), "--tokenizer", "bytes", "--out", str(tmp_path / "out")]
    assert "toy-train.array_record-00001-of-00003 is damaged" in refused(capsys, main, *words)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.slow
def test_ctrl_c_is_one_line_and_the_work_goes_on(tmp_path, ctrl_c):
    """Kills: a traceback; work that is lost."""
    data = build(tmp_path / "data", {"train": [("never odd or even " * 5000, "a")] * 60}, n_shards=4)
    learn(["--data", str(data), "--vocab-size", "300", "--max-bytes", "1000", "--out", str(tmp_path / "bpe")])
    out = tmp_path / "out"
    words = ["--data", str(data), "--tokenizer", str(tmp_path / "bpe"), "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxzoo.data.tokenize", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    work = Tokenization(data, load_tokenizer(tmp_path / "bpe"), out)
    while work.progress().tokens < 9000 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
    assert complaint.splitlines()[-1] == "interrupted; the same command goes on from here"
    assert "Traceback" not in complaint
    assert not (out / "manifest.json").exists()
    assert main(words) == 0


def test_help_names_every_flag(capsys):
    """Kills: a flag that nobody can find."""
    for command, flags in [
        (main, TokenizeCommand(data=Path(), tokenizer="", out=Path())),
        (learn, TrainTokenizerCommand(data=Path(), out=Path())),
    ]:
        assert command(["--help"]) == 0
        out = capsys.readouterr().out
        assert [flag for flag in flags_of(flags) if flag not in out] == []
