"""Documents read from files. Kills: damage that passes as text, memory that grows with a line."""

import bz2
import gzip
import json
from pathlib import Path

import pytest
import zstandard

from jaxzoo.data.corpus import lines
from jaxzoo.data.corpus.documents import (
    SOURCES,
    DocumentFields,
    Skipped,
    find_source_files,
    read_documents,
)
from jaxzoo.data.corpus.lines import read_lines

PILE = SOURCES["pile"].fields


def pile_line(text: str, subset: str = "Pile-CC") -> bytes:
    return json.dumps({"text": text, "meta": {"pile_set_name": subset}}).encode() + b"\n"


def zst(*frames: bytes) -> bytes:
    return b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(frame) for frame in frames)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


def read(files: list[Path], fields: DocumentFields | None, **options) -> tuple[list[tuple[str, str]], Skipped]:
    skipped = Skipped()
    return [(found.text, found.subset) for found in read_documents(files, fields, skipped, **options)], skipped


def test_lines_are_those_of_the_whole_file(tmp_path, monkeypatch):
    """Kills: lines cut or joined at the edges of chunks and frames, a last line without its end that is lost."""
    for size in [1, 7, 2**16]:
        monkeypatch.setattr(lines, "CHUNK_BYTES", size)
        content = b"first\n\nthird \xc3\xa4\n" + b"x" * 300 + b"\nlast"
        plain, compressed, gz = (tmp_path / f"a.jsonl{end}" for end in ("", ".zst", ".gz"))
        plain.write_bytes(content)
        skippable = bytes.fromhex("502a4d18") + (3).to_bytes(4, "little") + b"abc"
        compressed.write_bytes(zst(content[:9]) + skippable + zst(content[9:20], b"", content[20:]))
        assert list(read_lines(plain)) == content.split(b"\n")
        gz.write_bytes(gzip.compress(content[:9]) + gzip.compress(content[9:]))
        assert list(read_lines(compressed)) == list(read_lines(gz)) == content.split(b"\n")


def test_an_endless_line_does_not_fill_the_memory(tmp_path, monkeypatch):
    """Kills: a reader that gathers a file without line ends until the machine has no memory left."""
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 100)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"short\n" + b"x" * 5000)
    for content in (b"x" * 5000 + b"\n" + b"y" * 1000, b"y" * 1000 + b"\n" + b"x" * 1001):
        file.write_bytes(b"short\n" + content)
        expected = [b"y" * 1000 if line.startswith(b"y") else None for line in content.split(b"\n")]
        assert list(read_lines(file)) == [b"short", *expected]
    file.write_bytes(b'{"text": "one"}\n\n' + b"x" * 1001)
    with pytest.raises(ValueError, match=r"a\.jsonl:3: longer than .* bytes; --skip-bad to leave out such lines"):
        read([file], DocumentFields())


def test_fields_of_each_source(tmp_path):
    """Kills: a subset that is dropped or is another source's, text that is changed on the way."""
    text = "line one\nline two\t\u00e4\U0001f600 "
    file = tmp_path / "a.jsonl"
    file.write_text(
        json.dumps({"text": text, "meta": {"pile_set_name": "P", "redpajama_set_name": "R"}, "a": {"b": "c"}})
    )
    assert read([file], PILE)[0] == [(text, "P")]
    assert read([file], SOURCES["slimpajama"].fields)[0] == [(text, "R")]
    assert read([file], DocumentFields())[0] == [(text, "")]
    assert read([file], DocumentFields("a.b", "text"))[0] == [("c", text)]
    assert read([file], None)[0] == [(file.read_text(), "")]


def test_a_damaged_line(tmp_path):
    """Kills: damage that passes, ends in a traceback, or takes its neighbours with it; a wrong line number."""
    for line, message in [
        (b"{not json}", "not JSON"),
        (b'{"text": "half', "not JSON"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (rb'{"text": "\ud800", "meta": {"pile_set_name": ""}}', "not UTF-8"),
        (b'{"meta": {"pile_set_name": "a"}}', "no field 'text'"),
        (b'{"text": "a", "meta": "b"}', "no field 'meta.pile_set_name'"),
        (b'["text"]', "no field 'text'"),
        (b'{"text": 5, "meta": {"pile_set_name": "a"}}', "field 'text' must be a string, got 5"),
        (b"[" * 100_000, "not JSON"),
    ]:
        files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
        files[0].write_bytes(pile_line("zero"))
        files[1].write_bytes(pile_line("one") + b"\n" + line + b"\n" + pile_line("two"))
        with pytest.raises(ValueError, match="skip-bad to leave out such lines") as refused:
            read(files, PILE)
        assert str(refused.value).startswith(f"{files[1]}:3: {message}")
        found, skipped = read(files, PILE, skip_bad=True)
        assert [text for text, _ in found] == ["zero", "one", "two"]
        assert (skipped.lines, skipped.files, skipped.empty) == (1, 0, 0)
        assert skipped.places[0].startswith(f"b.jsonl:3: {message}")


def test_damage_in_a_block_of_bzip2(tmp_path):
    """Kills: text of a damaged block, whose checksum comes after it, that is taken for documents."""
    file = tmp_path / "flipped.jsonl.bz2"
    file.write_bytes(flipped(bz2.compress(b"".join(pile_line(f"{i} " * 50) for i in range(2000))), 2000))
    with pytest.raises(ValueError, match=r"flipped\.jsonl\.bz2:1: not JSON"):
        read([file], PILE)
    found, skipped = read([file], PILE, skip_bad=True)
    assert not found
    assert skipped.files == 1


def test_damaged_compression(tmp_path):
    """Kills: a truncated file that reads as a shorter one, a damaged one that takes the next file with it."""
    content = b"".join(pile_line(f"{i} " * 50) for i in range(2000))
    frames = zst(content[: len(content) // 2], content[len(content) // 2 :])
    damages = {
        "truncated.jsonl.zst": (frames[:-20], "truncated"),
        "flipped.jsonl.zst": (flipped(frames, 2000), "damaged zst"),
        "strange.jsonl.zst": (frames + b"no frame at all", "damaged zst"),
        "plain.jsonl.zst": (content, "damaged zst"),
        "truncated.jsonl.gz": (gzip.compress(content)[:-20], "truncated"),
        "plain.jsonl.gz": (content, "damaged gz data"),
        "strange.jsonl.gz": (gzip.compress(content) + b"no member at all", "damaged gz data"),
        "truncated.jsonl.bz2": (bz2.compress(content)[:-20], "truncated"),
    }
    good = tmp_path / "good.jsonl"
    good.write_bytes(pile_line("good"))
    for name, (data, message) in damages.items():
        file = tmp_path / name
        file.write_bytes(data)
        with pytest.raises(ValueError, match=f"{name}:after line .*({message}).*--skip-bad to leave out the rest"):
            read([file, good], PILE)
        found, skipped = read([file, good], PILE, skip_bad=True)
        assert found[-1] == ("good", "Pile-CC")
        assert found[:-1] == [(f"{i} " * 50, "Pile-CC") for i in range(len(found) - 1)]
        assert skipped.files == 1


def test_what_was_skipped_is_counted(tmp_path):
    """Kills: a bad line, the rest of a bad file or an empty document that nobody counts, or that takes another."""
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl.zst", tmp_path / "c.jsonl"]
    files[0].write_bytes(pile_line("a") + b"bad\n\n" + pile_line("b") + pile_line(""))
    files[1].write_bytes(zst(b"bad\n" + pile_line("c") + pile_line("d")) + b"damage")
    files[2].write_bytes(pile_line("e") + b"bad\n")
    found, skipped = read(files, PILE, skip_bad=True)
    assert [text for text, _ in found] == list("abcde")
    assert (skipped.lines, skipped.files, skipped.empty) == (3, 1, 1)
    assert [place.split(":")[0] for place in skipped.places] == ["a.jsonl", "b.jsonl.zst", "b.jsonl.zst", "c.jsonl"]


def test_finds_files(tmp_path):
    """Kills: other files of a folder that are read as JSON; an error that does not name the option."""
    for name in ("b.jsonl.zst", "a.jsonl", "notes.txt", "sub/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert list(find_source_files("pile", str(tmp_path))) == ["a.jsonl", "b.jsonl.zst", "sub/c.jsonl"]
    assert list(find_source_files("jsonl", f"{tmp_path}/*.txt")) == ["notes.txt"]
    assert len(find_source_files("text", str(tmp_path))) == 4
    with pytest.raises(ValueError, match=r"--valid-paths='.*none' must be a directory, a file or a glob"):
        find_source_files("text", str(tmp_path / "none"), option="--valid-paths")
    with pytest.raises(ValueError, match=r"--paths='.*' must name files named \*.jsonl or \*.jsonl.zst or"):
        find_source_files("pile", f"{tmp_path}/*.none")
