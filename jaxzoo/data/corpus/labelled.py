"""Sequences with a class each, as files: the layout of GenomicBenchmarks (Gresova et al. 2022), or tables.

    train/CLASS/anything.txt    a sequence per file
    train.csv                   a header with the columns sequence and label, a row per sequence

Splits are `train`, `test`, and `valid` or none.
"""

import csv
from pathlib import Path

from jaxzoo.config.checked import shorten
from jaxzoo.data.corpus.lines import MOST_LINE_BYTES, TextDocument

SPLITS = ("train", "valid", "test")


def find_benchmark(path: Path) -> dict[str, list[Path]]:
    """Returns the files of each split. Raises `ValueError` for a class without sequences."""
    found = {}
    for split in SPLITS:
        if (table := path / f"{split}.csv").is_file():
            found[split] = [table]
        elif (path / split).is_dir():
            folders = {folder: sorted(folder.glob("*.txt")) for folder in sorted((path / split).glob("*/"))}
            if empty := next((folder for folder, files in folders.items() if not files), None):
                raise ValueError(f"{empty} holds no *.txt; every class needs a sequence")
            found[split] = [file for files in folders.values() for file in files]
    return found


def read_benchmark(path: Path) -> dict[str, list[TextDocument]]:
    """Returns the sequences of each split; raises as `find_benchmark`, `read_labelled` and `check_splits` do."""
    places = find_benchmark(path)
    found = {split: [row for file in files for row in read_labelled(file)] for split, files in places.items()}
    check_splits(path, found)
    return found


def check_splits(path: Path, found: dict[str, list[TextDocument]]) -> None:
    """Raises `ValueError` if train or test is missing, or a class is in only one of the splits."""
    for split in ("train", "test"):
        if split not in found:
            raise ValueError(f"{path} must hold {split}/CLASS/*.txt or {split}.csv, and has neither; check the path")
    names = {split: {row.subset for row in rows} for split, rows in found.items()}
    for split, there in names.items():
        if odd := sorted(there ^ names["train"]):
            where = f"one of train and {split} only"
            raise ValueError(f"{path}: class {shorten(odd[0])} is in {where}; splits must have the same")


def read_labelled(file: Path) -> list[TextDocument]:
    """Returns the sequences of a file, in capitals; the subset is the class. Raises `ValueError` for an empty sequence
    and a file that is no table in UTF-8."""
    if file.suffix != ".csv":
        text = _checked(file.read_text("utf-8-sig").strip(), str(file))
        return [TextDocument(text, file.parent.name, file.parent.parent.name)]
    with file.open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.DictReader(stream)
        usual = csv.field_size_limit(MOST_LINE_BYTES)  # 131,072 characters, fewer than some sequences have
        try:
            if not {"sequence", "label"} <= set(rows.fieldnames or ()):
                rule = "the header must have the columns sequence and label"
                raise ValueError(f"{file}:1: {rule}, got {shorten(rows.fieldnames)}")
            return [
                TextDocument(_checked(row["sequence"] or "", f"{file}:{rows.line_num}"), row["label"] or "", file.stem)
                for row in rows
            ]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{file}:{rows.line_num + 1}: no table in UTF-8: {error}") from None
        finally:
            csv.field_size_limit(usual)


def _checked(text: str, where: str) -> str:
    if not text:
        raise ValueError(f"{where}: the sequence is empty; leave it out")
    return text.upper()
