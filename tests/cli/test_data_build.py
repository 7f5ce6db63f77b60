"""`python -m jaxzoo.data.build` and `python -m jaxzoo.data.demo_pile`: what they print, what they refuse."""

import ast
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path

import pytest
import zstandard

from jaxzoo.cli.data_build import BuildCommand, main
from jaxzoo.cli.data_demo_pile import main as demo_pile
from jaxzoo.cli.flags import flags_of
from jaxzoo.data.corpus import building
from jaxzoo.data.corpus.documents import SOURCES
from jaxzoo.utils import extras


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Two files of five good documents, one damaged line and an empty document."""
    rows = [json.dumps({"text": f"text {i}", "part": "even" if i % 2 == 0 else "odd"}) for i in range(5)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join([*rows[:2], '{"text": ""}', *rows[2:4]]))
    (tmp_path / "in" / "b.jsonl").write_text(f"{rows[4]}\nbad\n")
    return tmp_path


def test_builds_and_tells(corpus, capsys):
    """Kills: totals of skipped lines that nobody sees; a second start that builds again; counts of another split."""
    flags = f"--source jsonl --paths {corpus}/in --out {corpus}/out --valid-fraction 0".split()
    assert main(flags) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {corpus}/in/b.jsonl:2: not JSON: Expecting value")
    assert err.endswith("--skip-bad to leave out such lines\n")
    assert main([*flags, "--skip-bad"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == f"{corpus}/out/text_corpus/1.0.0: built"
    assert lines[1] == "  train: 5 documents, 30 bytes of text"
    assert lines[2:4] == [
        "  left out: 1 empty documents",
        "  skipped: 1 damaged lines, the rest of 0 damaged files, such as",
    ]
    assert lines[4].startswith("    b.jsonl:2: not JSON")
    assert err == "warning: no document is in the split valid; --valid-fraction or --valid-paths give some\n"
    assert main(flags) == 0
    assert capsys.readouterr().out.splitlines() == [f"{corpus}/out/text_corpus/1.0.0: is finished already", *lines[1:]]


def test_subsets_and_splits_reach_the_report(corpus, capsys):
    """Kills: a flag that is dropped on its way to the build."""
    (corpus / "in" / "b.jsonl").write_text('{"text": "more", "part": "b"}')
    (corpus / "in" / "a.jsonl").write_text('{"body": {"text": "\\u00e4"}, "part": "a"}')
    flags = f"--source jsonl --paths {corpus}/in/a* --text-field body.text --subset-field part --out {corpus}/out"
    assert main(flags.split()) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  train: 1 documents, 2 bytes of text",
        "    a: 1 documents, 2 bytes",
    ]
    flags = f"--source jsonl --paths {corpus}/in/b* --test-paths {corpus}/in/b.j* --out {corpus}/out2"
    assert main(flags.split()) == 2
    assert "is in --paths and in --test-paths" in capsys.readouterr().err


def test_refuses_in_one_line(corpus, capsys):
    """Kills: a traceback or a box for bad input; anything written in spite of it."""
    for flags, message in [
        ("", "--source is required; see --help"),
        ("--source pil --paths x --out OUT", "invalid choice 'pil' for argument '--source'"),
        (
            "--source pile --paths IN/none --out OUT",
            "--paths='IN/none' must be a directory, a file or a glob that exists",
        ),
        ("--source jsonl --paths IN --valid-paths IN/x* --out OUT", "--valid-paths='IN/x*' must name files"),
        ("--source jsonl --paths IN --out IN", "--out IN holds 'a.jsonl', which this command did not write"),
        ("--source jsonl --paths IN --out IN/a.jsonl", "--out IN/a.jsonl must be a directory"),
        ("--source jsonl --paths IN --out OUT --workers 0", "--workers 0 must be positive"),
        ("--source jsonl --paths IN --out OUT --valid-fraction 1", "--valid-fraction 1.0 must be in [0, 1)"),
        (
            "--source jsonl --paths IN --valid-paths IN/b* --valid-fraction 0.1 --out OUT",
            "--valid-fraction 0.1 must not be given with valid_paths",
        ),
        (
            "--source pile --paths IN --text-field a --out OUT",
            "--text-field 'a' is for source jsonl or parquet",
        ),
        ("--source jsonl --paths IN --out OUT --worker 2", "unknown option --worker; did you mean --workers?"),
        ("--source pile --paths IN --out OUT", "IN/a.jsonl:1: no field 'meta.pile_set_name'"),
    ]:
        before = sorted(corpus.rglob("*"))
        place = {"IN": f"{corpus}/in", "OUT": f"{corpus}/out"}
        for word, path in place.items():
            flags, message = flags.replace(word, path), message.replace(word, path)
        assert main(flags.split()) == 2
        out, err = capsys.readouterr()
        assert err.startswith(f"error: {message}")
        assert err.count("\n") == 1
        assert out == ""
        assert sorted(corpus.rglob("*")) == before


@pytest.mark.full
def test_low_disk(corpus, capsys, monkeypatch):
    """Kills: a build that fills the disk; a check that cannot be overridden."""
    usage = type(building.shutil.disk_usage("/"))
    monkeypatch.setattr(building.shutil, "disk_usage", lambda _: usage(0, 0, 10))
    flags = f"--source jsonl --paths {corpus}/in/a* --out {corpus}/out".split()
    assert main(flags) == 2
    assert "are free; free some, choose another place, or try with --allow-low-disk" in capsys.readouterr().err
    assert not (corpus / "out").exists()
    assert main([*flags, "--allow-low-disk"]) == 0
    assert main(flags) == 0


@pytest.mark.full
def test_a_missing_library_is_named(corpus, capsys, monkeypatch):
    """Kills: an ImportError's traceback where the extra is not installed."""
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None if name == "array_record" else name)
    assert main(f"--source jsonl --paths {corpus}/in --out {corpus}/out".split()) == 2
    message = "error: building a corpus needs the library 'array_record'; pip install -e '.[data]'\n"
    assert capsys.readouterr().err == message


def test_help_tells_every_flag(capsys):
    """Kills: a flag without its meaning; choices that only one of the two knows."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert [flag for flag in flags_of(BuildCommand(source="pile", paths="", out=Path())) if flag not in out] == []
    assert set(typing.get_args(typing.get_type_hints(BuildCommand)["source"])) == set(SOURCES)


@pytest.mark.slow
def test_ctrl_c_is_one_line(tmp_path, ctrl_c):
    """Kills: tracebacks of the workers, workers that go on, a command that cannot be continued."""
    (tmp_path / "in").mkdir()
    row = json.dumps({"text": "word " * 2000}) + "\n"
    for i in range(4):
        (tmp_path / "in" / f"{i}.jsonl").write_text(row * 3000)
    flags = f"--source jsonl --paths {tmp_path}/in --out {tmp_path}/out --max-shard-mb 1 --workers 2".split()
    command = [sys.executable, "-m", "jaxzoo.data.build", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as running:
        deadline = time.monotonic() + 40
        while not list((tmp_path / "out").glob("work/notes/*.json")) and time.monotonic() < deadline:
            time.sleep(0.005)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=40)
    *progress, last = err.splitlines()
    assert (running.returncode, out, last) == (130, "", "interrupted; the same command goes on from here")
    assert all(" of 4 files" in line for line in progress)
    assert not (tmp_path / "out" / "work" / "claims").exists()


@pytest.mark.full
def test_demo_pile(tmp_path, capsys):
    """Kills: another format than the Pile's, a document in two files or none, bytes that change."""
    for name in ("one", "two"):
        assert demo_pile(["--out", str(tmp_path / name)]) == 0
    out = capsys.readouterr().out.splitlines()
    texts: dict[str, list[str]] = {}
    for i, file in enumerate(("train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst")):
        data = (tmp_path / "one" / file).read_bytes()
        assert data == (tmp_path / "two" / file).read_bytes()
        assert out[i].startswith(f"{tmp_path}/one/{file}  {len(data):,} bytes of zst; Python reference: ")
        rows = [json.loads(line) for line in zstandard.ZstdDecompressor().stream_reader(data).read().splitlines()]
        for row in rows:
            assert row.keys() == {"text", "meta"}
            texts.setdefault(row["meta"]["pile_set_name"], []).append(row["text"])
        assert len({row["meta"]["pile_set_name"] for row in rows}) == 2
        n_bytes = sum(len(row["text"].encode()) for row in rows if row["meta"]["pile_set_name"] == "Python source")
        assert (
            f"Python source: {sum(row['meta']['pile_set_name'] == 'Python source' for row in rows)} documents, "
            in out[i]
        )
        assert f"{n_bytes:,} bytes" in out[i]
    sources = texts["Python source"]
    assert Path(ast.__file__).read_text() in sources
    assert 400 < len(sources) < 2000
    topics = importlib.import_module("pydoc_data.topics").topics
    assert sorted(texts["Python reference"]) == sorted(topics.values())
    assert demo_pile(["--out", str(tmp_path / "one")]) == 2
    message = f"error: {tmp_path}/one/train/00.jsonl.zst exists; choose another --out, or replace it with --overwrite\n"
    assert capsys.readouterr().err == message
    assert demo_pile(["--out", str(tmp_path / "one"), "--overwrite"]) == 0


@pytest.mark.full
def test_demo_pile_with_packages(tmp_path, capsys):
    """Kills: a package left out, its tests or other files taken for source, another subset, a traceback at a typo."""
    assert demo_pile(["--out", str(tmp_path / "pile"), "--packages", "tyro", "zstandard"]) == 0
    found = []
    for file in ("train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst"):
        data = zstandard.ZstdDecompressor().stream_reader((tmp_path / "pile" / file).read_bytes()).read()
        rows = map(json.loads, data.splitlines())
        found += [row["text"] for row in rows if row["meta"]["pile_set_name"] == "Python packages"]
    roots = [Path(importlib.import_module(name).__file__).parent for name in ("tyro", "zstandard")]
    assert sorted(found) == sorted(filter(None, (f.read_text() for root in roots for f in root.rglob("*.py"))))
    capsys.readouterr()
    assert demo_pile(["--out", str(tmp_path / "none"), "--packages", "no-such-thing"]) == 2
    assert capsys.readouterr().err == (
        "error: --packages no-such-thing: not installed; install it, or name another one\n"
    )
    assert not (tmp_path / "none").exists()
