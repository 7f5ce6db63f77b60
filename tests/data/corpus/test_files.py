"""The split of files into train and valid. Kills: a file that changes its side when others come."""

import hashlib
import json
import os
import re
from pathlib import Path

import pytest

from jaxzoo.data.corpus.files import find_files, read_corpus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 files in three depths, with text that differs from file to file."""
    for i in range(60):
        file = tmp_path.joinpath("corpus", *["a", "b"][: i % 3], f"f{i:02d}.txt")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"text {i} " * (i + 1))
    return tmp_path / "corpus"


def names(documents) -> set[str]:
    return {d.name for d in documents}


def split_of(path, seed=3, valid_fraction=0.3):
    corpus = read_corpus(str(path), valid_fraction=valid_fraction, seed=seed)
    return names(corpus.train), names(corpus.valid)


def expected_in_valid(name: str, seed: int, fraction: float) -> bool:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()
    return int(digest[:12], 16) < fraction * 16**12


def test_split_is_the_hash_of_seed_and_name(folder):
    """Kills: a split by rank, by content or by Python's salted `hash`."""
    train, valid = split_of(folder)
    every = {f.relative_to(folder).as_posix() for f in folder.rglob("*.txt")}
    assert valid == {n for n in every if expected_in_valid(n, 3, 0.3)}
    assert train == every - valid
    assert 8 < len(valid) < 30
    assert split_of(folder, seed=4) != (train, valid)


def test_files_stay_on_their_side_when_others_come_and_go(folder):
    """Kills: a shuffle-and-cut split, under which a new file moves old ones into validation."""
    train, valid = split_of(folder)
    gone = {"f00.txt", "a/b/f59.txt"}
    for name in gone:
        (folder / name).unlink()
    (folder / "new").mkdir()
    for i in range(30):
        (folder / "new" / f"{i}.md").write_text("new")
    new_train, new_valid = split_of(folder)
    assert {n for n in new_train if not n.startswith("new/")} == train - gone
    assert {n for n in new_valid if not n.startswith("new/")} == valid - gone


def test_split_and_fingerprint_do_not_depend_on_place_or_spelling(folder, monkeypatch):
    """Kills: absolute names: the same corpus elsewhere, or as a glob, must be the same corpus."""
    direct = read_corpus(str(folder), valid_fraction=0.3, seed=3)
    globbed = read_corpus(str(folder / "**" / "*.txt"), valid_fraction=0.3, seed=3)
    moved = folder.rename(folder.parent / "elsewhere")
    monkeypatch.chdir(moved.parent)
    relative = read_corpus("elsewhere", valid_fraction=0.3, seed=3)
    assert direct == globbed == relative
    assert direct.fingerprint() == relative.fingerprint()


def test_manifest_and_fingerprint_notice_every_change(folder):
    """Kills: a fingerprint of names or sizes alone: one changed byte must show, and so must another split."""
    corpus = read_corpus(str(folder), valid_fraction=0.3, seed=3)
    manifest = corpus.manifest()
    assert json.loads(json.dumps(manifest)) == manifest
    listed = {row[0]: row[1:] for rows in manifest.values() for row in rows}
    data = (folder / "a" / "f01.txt").read_bytes()
    assert listed["a/f01.txt"] == [len(data), hashlib.sha256(data).hexdigest()]
    other_split = read_corpus(str(folder), valid_fraction=0.3, seed=4).fingerprint()
    (folder / "a" / "f01.txt").write_bytes(data.replace(b"text", b"tent", 1))
    changed = read_corpus(str(folder), valid_fraction=0.3, seed=3).fingerprint()
    assert len({corpus.fingerprint(), other_split, changed}) == 3


def test_single_file_is_cut_at_a_character_near_its_end(tmp_path):
    """Kills: a cut inside a character, a lost or doubled byte at the cut, and a swap of both ends."""
    text = "aé漢" * 33  # 6 bytes a group: 198 bytes, of which the last fifth, 39.6, begins inside a character
    (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    corpus = read_corpus(str(tmp_path / "one.txt"), valid_fraction=0.2, seed=0)
    (train,), (valid,) = corpus.train, corpus.valid
    assert train.data.decode() + valid.data.decode() == text
    assert 40 <= len(valid.data) <= 42
    assert (train.name, valid.name) == (f"one.txt[:{len(train.data)}]", f"one.txt[{len(train.data)}:]")
    assert corpus.manifest()["valid"][0][0] == valid.name


def test_what_is_no_text_is_left_out_and_counted(tmp_path):
    """Kills: reading of binaries, hidden files and directories, and a crash on a dangling link."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    for name in ("z.md", "sub/a.unknown", ".git/config", ".hidden", "sub/.hidden"):
        (tmp_path / name).write_text("text")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    corpus = read_corpus(str(tmp_path), valid_fraction=0.5, seed=0)
    assert names(corpus.train) | names(corpus.valid) == {"z.md", "sub/a.unknown"}
    assert corpus.n_skipped == 2
    assert list(find_files(str(tmp_path))) == ["binary", "empty", "sub/a.unknown", "z.md"]
    assert "2 files left out" in corpus.summary()


def test_errors_name_field_value_rule_and_remedy(tmp_path, monkeypatch):
    """Kills: a bare IndexError or FileNotFoundError deep in the reader."""
    for path, rule in [
        ("missing", "must be a directory, a file or a glob that exists; check the spelling"),
        ("bed/a", "must be a directory, a file or a glob that exists; check the spelling"),
        ("bed", "must be a directory, a file or a glob that exists; did you mean 'bad'?"),
        ("*.nothing", "must hold UTF-8 text, but of its 0 files 0 are empty or not UTF-8; name a"),
        ("bad", "must hold UTF-8 text, but of its 2 files 2 are empty or not UTF-8; name a"),
    ]:
        (tmp_path / "bad").mkdir(exist_ok=True)
        (tmp_path / "bad" / "a").write_bytes(b"\xff")
        (tmp_path / "bad" / "b").write_bytes(b"")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ValueError, match=re.escape(f"TextDataConfig.path={path!r} {rule}")):
            read_corpus(path, valid_fraction=0.5, seed=0)


@pytest.mark.parametrize("call", ["read_bytes", "scandir"])
def test_no_permission_is_an_error_not_a_smaller_corpus(folder, monkeypatch, call):
    """Kills: silent omission: `os.walk` passes over what it may not list. Faked, since root may read all."""
    owner = Path if call == "read_bytes" else os
    real = getattr(owner, call)

    def guarded(place):
        if str(place).endswith(("a/f01.txt", "corpus/a")):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr(owner, call, guarded)
    with pytest.raises(ValueError, match=r"path='.*corpus' must be readable, but: .*Permission denied.*; give"):
        read_corpus(str(folder), valid_fraction=0.3, seed=3)
