"""Text files on disk, and their split into training and validation.

The default corpus is the Python standard library's own `.py` source, some 9 MB. Names are POSIX paths relative to the
directory (to the last directory before the first wildcard of a glob): neither the split nor the fingerprint depends on
where the corpus lies.
"""

import codecs
import dataclasses
import glob
import hashlib
import itertools
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.config.checked import nearest_path
from jaxzoo.config.json_files import refuse_pointer
from jaxzoo.utils.checksums import text_sha256

STDLIB_LEFT_OUT = frozenset(
    ("__pycache__", "dist-packages", "encodings", "idle_test", "pydoc_data", "site-packages", "test", "tests")
)
"""Directories of the standard library outside the default corpus: installed packages; tests, which would be most of it;
generated tables, whose near copies would be in both splits."""
MACHINE_MADE = ("_sysconfigdata", "config-")
"""Prefixes of names in the standard library whose content depends on the machine."""

_FIELD = "TextDataConfig.path"


class Document(NamedTuple):
    """A file, or one of the two parts of a single file."""

    name: str
    """Relative POSIX path; `name[:n]` and `name[n:]` for the two ends of a single file, cut at byte n."""
    data: bytes
    """Valid UTF-8, not empty."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents of both splits."""

    train: tuple[Document, ...]
    """Sorted by name."""
    valid: tuple[Document, ...]
    """Sorted by hash, so that any prefix is a fair sample."""
    n_skipped: int = 0
    """Number of skipped files, which are empty or not UTF-8."""

    def manifest(self) -> dict[str, list[list[Any]]]:
        """Listing of the files, JSON-able: `{split: [[name, bytes, sha256 of content], ...]}`."""
        return {
            split: [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in documents]
            for split, documents in (("train", self.train), ("valid", self.valid))
        }

    def fingerprint(self) -> str:
        """12 hexadecimal digits that change with the name, content or split of any file."""
        return text_sha256(json.dumps(self.manifest()))[:12]

    def summary(self) -> str:
        sizes = [
            f"{split} {len(documents)} files, {sum(len(d.data) for d in documents):,} bytes"
            for split, documents in (("train", self.train), ("valid", self.valid))
        ]
        return f"{'; '.join(sizes)}; {self.n_skipped} files left out as empty or not UTF-8"


def read_corpus(path: str = "", *, valid_fraction: float, seed: int) -> Corpus:
    """Finds, splits and reads the files of `path`: a directory (recursively, without links to directories), file or
    glob.

    A file is for validation if a hash of seed and name, a number in [0, 1), is below `valid_fraction`, independent of
    other files. If a split would be empty, it gets the file with the lowest (validation) or highest (training) hash. A
    single file is cut in two; its last `valid_fraction` (by bytes, at a character) is the validation text. An empty
    path is the standard library. Raises `ValueError` if `path` does not exist, cannot be read or holds no text.
    """
    try:
        files = find_files(path)
        for file in files.values():
            refuse_pointer(file)
        contents = {name: file.read_bytes().removeprefix(codecs.BOM_UTF8) for name, file in files.items()}
    except OSError as error:
        remedy = "give read permission, or name other files"
        raise ValueError(f"{_FIELD}={path!r} must be readable, but: {error}; {remedy}") from error
    documents = [Document(name, data) for name, data in contents.items() if _is_text(data)]
    n_skipped = len(files) - len(documents)
    if not documents:
        rule = f"must hold UTF-8 text, but of its {len(files)} files {n_skipped} are empty or not UTF-8"
        raise ValueError(f"{_FIELD}={path!r} {rule}; name a directory, a file or a glob such as 'books/**/*.txt'")
    if len(documents) == 1:
        train, valid = _cut(documents[0], valid_fraction)
        return Corpus(train=(train,), valid=(valid,), n_skipped=n_skipped)
    share = {d.name: hash_share(b"%d:%s" % (seed, os.fsencode(d.name))) for d in documents}
    n_valid = min(max(sum(each < valid_fraction for each in share.values()), 1), len(documents) - 1)
    chosen = sorted(share, key=share.__getitem__)[:n_valid]
    by_name = {d.name: d for d in documents}
    return Corpus(
        train=tuple(d for d in documents if d.name not in chosen),
        valid=tuple(by_name[name] for name in chosen),
        n_skipped=n_skipped,
    )


def find_files(path: str = "", *, field: str = _FIELD) -> dict[str, Path]:
    """Returns relative POSIX name -> regular file, sorted by name, without hidden ones unless `path` names them. An
    existing file of the very name `path` has priority over its reading as a glob. Raises `ValueError`, with `field` as
    the name of `path`, if it neither exists nor is a glob."""
    place = os.path.expanduser(path)
    if not path:
        root = Path(sysconfig.get_path("stdlib"))
        found = (f for f in _walk(root, STDLIB_LEFT_OUT, MACHINE_MADE) if f.suffix == ".py")
    elif os.path.isfile(place):
        root = Path(place).parent
        found = [Path(place)]
    elif os.path.isdir(place):
        root = Path(place)
        found = _walk(Path(place))
    elif _is_glob(place):
        root = Path(*itertools.takewhile(lambda part: not _is_glob(part), Path(place).parts))
        found = map(Path, glob.iglob(place, recursive=True))
    else:
        rule = "must be a directory, a file or a glob that exists"
        raise ValueError(f"{field}={path!r} {rule}{nearest_path(place) or '; check the spelling'}")
    named = {file.relative_to(root).as_posix(): file for file in found if file.is_file()}
    return dict(sorted(named.items()))


def _walk(root: Path, left_out: Iterable[str] = (), prefixes: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yields files below `root` except hidden ones, those in directories of `left_out`, and names with `prefixes`."""

    def stop(error: OSError) -> None:
        raise error  # os.walk skips directories that it cannot list

    for folder, folders, names in os.walk(root, onerror=stop):
        folders[:] = [n for n in folders if n not in left_out and not n.startswith((".", *prefixes))]
        yield from (Path(folder, n) for n in names if not n.startswith((".", *prefixes)))


def _is_glob(part: str) -> bool:
    return any(c in part for c in "*?[")


def _is_text(data: bytes) -> bool:
    try:
        return bool(data.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def hash_share(data: bytes) -> float:
    """Returns a number in [0, 1) that is a pure function of the data."""
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "big") / 2**48


def _cut(document: Document, valid_fraction: float) -> tuple[Document, Document]:
    """Cuts off the last `valid_fraction` of a document's bytes, at least one character."""
    name, data = document
    at = len(data) - max(1, round(len(data) * valid_fraction))
    while at > 0 and data[at] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        at -= 1
    return Document(f"{name}[:{at}]", data[:at]), Document(f"{name}[{at}:]", data[at:])
