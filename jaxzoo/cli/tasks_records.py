"""`jaxzoo tasks-records --out DIR`: makes an extraction task from installed packages."""

import collections
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from jaxzoo.cli.flags import UsageError, output_file
from jaxzoo.cli.runner import command_line, say
from jaxzoo.config.json_files import read_json
from jaxzoo.tasks.record_documents import MAX_SHARE, RecordsConfig, RecordSet
from jaxzoo.tasks.record_sources import DEBIAN, DPKG_STATUS, PYTHON, debian_records, python_records
from jaxzoo.utils.progress import show_progress
from jaxzoo.utils.whole_files import write_rows

Example = Mapping[str, str]
MANIFEST = "manifest.json"
MADE_BY = "jaxzoo.tasks.records"

FILES = {PYTHON: "python.jsonl", DEBIAN: "debian.jsonl"}
"""File names of the training text, by source."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsCommand(RecordsConfig):
    """Makes an extraction task, a small FDA (Based, sec. 6), from metadata of installed packages.

    A directory gets records.jsonl (for jaxzoo evaluate --tasks records --data DIR), train/*.jsonl
    (text that ends in questions and answers), valid/*.jsonl (the same from the packages of evaluation) and
    manifest.json (counts, and scores of guessing). FILE.jsonl gets the evaluation examples alone. The same flags give
    the same bytes as long as the same packages are installed.
    """

    out: Path
    """Directory or FILE.jsonl to write."""
    dpkg_status: Path = DPKG_STATUS
    """Debian's list of packages; left out if it does not exist."""
    overwrite: bool = False
    """Replace the earlier output of this command."""

    @property
    def records(self) -> RecordsConfig:
        """The fields that determine the documents."""
        fields = dataclasses.fields(RecordsConfig)
        return RecordsConfig(**{field.name: getattr(self, field.name) for field in fields})


@command_line()
def main(command: RecordsCommand) -> None:
    out = output_file("--out", command.out, or_folder=True)
    _check_out(out, overwrite=command.overwrite)
    found = [*python_records(), *debian_records(command.dpkg_status.expanduser())]
    records = RecordSet(found, command.records)
    examples = records.examples()
    if not examples:
        raise UsageError(f"--document-bytes {command.document_bytes} is too small for a question; take more")
    manifest = _manifest(records, examples, command.records)
    if out.suffix == ".jsonl":
        write_rows(out, examples)
    else:
        _write_directory(out, records, examples, manifest)
    for source, count in manifest["records"].items():
        asked = f"{count['valid']:,} for evaluation, which ask {count['examples']:,} questions"
        print(f"{source}: {count['train']:,} records for training, {asked}")
    length = statistics.median(len(example["text"].encode()) for example in examples)
    rare = f"no question asks for a value that more than {MAX_SHARE:.0%} of the records have"
    print(f"a question has {length:.0f} bytes (median); {rare}")
    guesses = manifest["baselines"]
    by_value = f"{guesses['most_frequent']:.2%} by the most frequent value of the key"
    by_field = f"{guesses['random_field']:.2%} by any field of the document"
    print(f"right without reading: {by_value}, {by_field}")
    say(f"written to {command.out}")


def _check_out(out: Path, *, overwrite: bool) -> None:
    """Refuses to replace existing files, except the command's own with --overwrite."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    ours = out.is_file() and out.suffix == ".jsonl"
    if (out / MANIFEST).is_file():
        with contextlib.suppress(ValueError):
            ours = read_json(out / MANIFEST, dict).get("made_by") == MADE_BY
    if not (overwrite and ours):
        raise UsageError(f"--out {out} exists; " + ("add --overwrite to replace it" if ours else "name another"))


def _write_directory(out: Path, records: RecordSet, examples: Sequence[Example], manifest: Any) -> None:
    """Writes everything to a directory that is renamed when complete."""
    unfinished = out.with_name(f".{out.name}.jaxzoo-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for split in ("train", "valid"):
        (unfinished / split).mkdir(parents=True)
        rows = records.training_documents(held_out=split == "valid")
        with contextlib.ExitStack() as stack:
            report = stack.enter_context(show_progress(f"{split} documents"))
            files: dict[str, TextIO] = {}  # by source, as soon as it has a row
            for n, row in enumerate(rows, 1):
                source = row["meta"]["pile_set_name"]
                if source not in files:
                    place = unfinished / split / FILES[source]
                    files[source] = stack.enter_context(place.open("w", encoding="utf-8", newline="\n"))
                files[source].write(json.dumps(row, ensure_ascii=False) + "\n")
                report("written", n)
    write_rows(unfinished / "records.jsonl", examples)
    (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    if out.exists():
        shutil.rmtree(out)
    os.replace(unfinished, out)


def _manifest(records: RecordSet, examples: Sequence[Example], config: RecordsConfig) -> dict[str, Any]:
    counts = {
        source: {
            "train": sum(record.source == source for record in records.train),
            "valid": sum(record.source == source for record in records.valid),
            "examples": sum(example["doc_id"].startswith(f"{source}/") for example in examples),
        }
        for source in FILES
    }
    return {
        "made_by": MADE_BY,
        "config": dataclasses.asdict(config),
        "records": {source: count for source, count in counts.items() if any(count.values())},
        "keys": dict(collections.Counter(example["key"] for example in examples).most_common()),
        "baselines": records.baselines(examples),
    }
