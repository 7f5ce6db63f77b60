"""Small real corpus in the Pile's format, made from files of the Python installation.

Two subsets: "Python source", the standard library's files as `files.find_files` gives them, and "Python reference",
the topics of the language reference that `help()` shows, one document each. Installed packages may be a third, "Python
packages". The bytes depend on the versions of Python, of these packages and of the zstd library alone.
"""

import importlib
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxzoo.data.corpus.files import find_files, hash_share
from jaxzoo.utils.extras import need
from jaxzoo.utils.whole_files import replacing

FILES = ("train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst")
VALID_FRACTION = 0.1


def write_python_pile(
    out: Path, packages: Sequence[str] = (), *, overwrite: bool = False
) -> dict[str, dict[str, list[int]]]:
    """Writes `FILES`; returns documents and bytes of text, by file and subset.

    A hash of subset and name decides the file of a document; within a file, documents are in the order of that hash.
    The Python files of `packages`, installed distributions such as numpy, are a third subset, without their tests.
    Raises `ValueError`: a file exists, a package is not installed, or the library zstandard is missing.
    """
    need("zstandard", "writing jsonl.zst files")
    import zstandard

    for file in FILES:
        if (out / file).exists() and not overwrite:
            raise ValueError(f"{out / file} exists; choose another --out, or replace it with --overwrite")
    texts = python_texts(packages)
    placed = sorted((hash_share(f"{subset}:{name}".encode()), subset, text) for subset, name, text in texts)
    middle = (1 + VALID_FRACTION) / 2
    shares = zip(FILES, ((VALID_FRACTION, middle), (middle, 1.0), (0.0, VALID_FRACTION)), strict=True)
    counts: dict[str, dict[str, list[int]]] = {}
    for file, (low, high) in shares:
        chosen = [(subset, text) for share, subset, text in placed if low <= share < high]
        counts[file] = {subset: [0, 0] for subset in sorted({subset for subset, _ in chosen})}
        for subset, text in chosen:
            count = counts[file][subset]
            count[0] += 1
            count[1] += len(text.encode())
        rows = ({"text": text, "meta": {"pile_set_name": subset}} for subset, text in chosen)
        data = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        with replacing(out / file, owned=True) as place:
            place.write_bytes(zstandard.ZstdCompressor(level=9, write_checksum=True).compress(data))
    return counts


def python_texts(packages: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields subset, name and text of all documents, without those that are empty or not UTF-8. Raises `ValueError` if
    a package is not installed."""
    files = [("Python source", name, file) for name, file in find_files("").items()]
    packaged: dict[str, Path] = {}
    for package in packages:
        try:
            found = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(f"packages={package!r}: not installed; install it, or name another one") from None
        python = [file for file in found if file.suffix == ".py" and not {"test", "tests"} & set(file.parts)]
        packaged |= {file.as_posix(): Path(str(file.locate())) for file in python}
    files += [("Python packages", name, file) for name, file in sorted(packaged.items()) if file.is_file()]
    for subset, name, file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text:
            yield subset, name, text
    for name, text in sorted(importlib.import_module("pydoc_data.topics").topics.items()):
        yield "Python reference", name, text
