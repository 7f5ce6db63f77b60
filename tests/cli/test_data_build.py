"""`jaxzoo data-build` and `demo_pile`. Kills: skipped lines that the report leaves out."""

import ast
import importlib
import json
from pathlib import Path

import pytest
import zstandard

from jaxzoo.cli.data_build import main
from jaxzoo.cli.data_demo_pile import main as demo_pile


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Two files of five good documents, one damaged line and an empty document."""
    rows = [json.dumps({"text": f"text {i}", "part": "even" if i % 2 == 0 else "odd"}) for i in range(5)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join([*rows[:2], '{"text": ""}', *rows[2:4]]))
    (tmp_path / "in" / "b.jsonl").write_text(f"{rows[4]}\nbad\n")
    return tmp_path


def test_builds_and_tells(corpus, capsys):
    """Kills: skipped lines that are not reported; a second start that builds again; counts of another split."""
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
    assert err == "warning: no document is in the split valid; use --valid-fraction or --valid-paths\n"
    assert main(flags) == 0
    assert capsys.readouterr().out.splitlines() == [f"{corpus}/out/text_corpus/1.0.0: is finished already", *lines[1:]]


def test_refuses_in_one_line(corpus, capsys):
    """Kills: a traceback for bad input; files written by a refused command."""
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
