"""Bases from FASTA files, plain or compressed by gzip or bgzip, as documents; read as a stream, in bounded memory.

A document is a run of at most `DOCUMENT_BASES` bases of one sequence, in capitals: soft-masked repeats (lower case)
become capitals, the ambiguous letters of IUPAC become N, and runs of at least `GAP_BASES` N, the gaps of an assembly,
are left out and end a document. The cuts depend only on the file and the splits.

Sequences, or parts of them, belong to splits by name (`--valid-regions chr8,chr9:1-5000000`, as samtools writes
regions: from 1, the end included), or by a BED file of intervals (from 0, the end excluded) with the split in column 4,
such as HyenaDNA's (Nguyen et al. 2023); bases outside of the intervals are left out. Overlapping intervals of one
split are joined, so that no base occurs twice.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from jaxzoo.data.corpus.lines import DamagedFileError, TextDocument, reading

DOCUMENT_BASES = 2**20
"""Most bases of a document."""
GAP_BASES = 100
"""Shortest run of N that is skipped."""
PART_BYTES = 2**16
"""Most bytes read at once; longer lines are read in parts."""
SPLITS = ("train", "valid", "test")

_TO_BASE = bytes.maketrans(b"acgtnRYSWKMBDHVryswkmbdhv", b"ACGTN" + b"N" * 20)
_NO_BASE = re.compile(rb"[^ACGTN]")
_GAP = re.compile(rb"N{%d,}" % GAP_BASES)
_REGION = re.compile(r"(?P<name>[^:]+)(?::(?P<first>\d+)-(?P<last>\d+))?")


class Interval(NamedTuple):
    """Part of a sequence, from 0, end excluded; `end` None: to the end of the sequence."""

    start: int
    end: int | None
    split: str


class FastaLayout(NamedTuple):
    """Split of each base."""

    intervals: dict[str, list[Interval]]
    """Sorted, disjoint intervals by name of the sequence."""
    rest: str | None = "train"
    """Split of all other bases; None: they are skipped."""

    def of(self, name: str) -> list[Interval]:
        """Returns the intervals of a sequence in order, including those of the split `rest`."""
        found = self.intervals.get(name, [])
        if self.rest is None:
            return found
        filled = []
        at = 0
        for interval in found:
            if at < interval.start:
                filled.append(Interval(at, interval.start, self.rest))
            filled.append(interval)
            if interval.end is None:
                return filled
            at = interval.end
        return [*filled, Interval(at, None, self.rest)]


def read_layout(*, valid_regions: str = "", test_regions: str = "", intervals: Path | None = None) -> FastaLayout:
    """Reads the splits that the user names. Raises `ValueError` for a damaged region or line, or overlapping splits."""
    if intervals is not None:
        return FastaLayout(_without_overlaps(_bed_lines(intervals), f"--intervals {intervals}"), None)
    regions = []
    for option, text, split in (("--valid-regions", valid_regions, "valid"), ("--test-regions", test_regions, "test")):
        if wrong := re.search(r"[^,]+:\d+-\d+,\d{3}(?=,|$)", text):  # 5,000 would be base 5 and a sequence 000
            rule = "must have no commas in numbers, as commas separate regions; list a sequence of three digits first"
            raise ValueError(f"{option}: {wrong[0]!r} {rule}")
        for part in filter(None, text.split(",")):
            found = _REGION.fullmatch(part.strip())
            if found is None:
                raise ValueError(f"{option}: {part!r} must read NAME or NAME:FIRST-LAST, such as chr8:1-5000000")
            if found["first"] is None:
                regions.append((found["name"], Interval(0, None, split)))
                continue
            first = int(found["first"])
            last = int(found["last"])
            if not 1 <= first <= last:
                raise ValueError(f"{option}: {part!r} must have 1 <= FIRST <= LAST")
            regions.append((found["name"], Interval(first - 1, last, split)))
    return FastaLayout(_without_overlaps(regions, "--valid-regions and --test-regions"))


def _bed_lines(file: Path) -> Iterator[tuple[str, Interval]]:
    for number, line in enumerate(_parts(file), start=1):
        fields = line.decode(errors="replace").split()
        if not fields or fields[0] in ("track", "browser") or fields[0].startswith("#"):
            continue
        split = fields[3] if len(fields) > 3 else ""
        split = "valid" if split in ("validation", "val") else split
        if split not in SPLITS or not (fields[1].isdigit() and fields[2].isdigit()):
            raise ValueError(f"{file}:{number}: must be NAME START END SPLIT, SPLIT one of train, valid, test")
        start = int(fields[1])
        end = int(fields[2])
        if start >= end:
            raise ValueError(f"{file}:{number}: START={start} must be below END={end}")
        yield fields[0], Interval(start, end, split)


def _without_overlaps(intervals: Iterable[tuple[str, Interval]], where: str) -> dict[str, list[Interval]]:
    """Sorts by name and start; joins overlaps of one split, and refuses those of two."""
    by_name: dict[str, list[Interval]] = {}
    for name, new in sorted(intervals, key=lambda pair: (pair[0], pair[1].start)):
        joined = by_name.setdefault(name, [])
        last = joined[-1] if joined else None
        if last is None or (last.end is not None and new.start >= last.end):
            joined.append(new)
        elif last.split != new.split:
            raise ValueError(
                f"{where}: {name} from base {new.start + 1} is in {last.split} and in {new.split}; name one of the two"
            )
        elif last.end is not None:
            joined[-1] = last._replace(end=None if new.end is None else max(last.end, new.end))
    return by_name


def read_bases(file: Path, layout: FastaLayout) -> Iterator[TextDocument]:
    """Yields the documents of a file, in order; subsets are the names of the sequences. Raises `DamagedFileError`, with
    the line, for a file that is not FASTA, a letter that is no base, or damaged compression."""
    pending: _Pending | None = None
    for number, part in enumerate(_parts(file), start=1):
        if part.startswith(b">"):
            if pending is not None:
                yield from pending.end()
            words = part[1:].decode("utf-8", errors="replace").split()
            if not words:
                raise DamagedFileError(f"line {number}: a sequence without a name")
            # The first word; of NCBI's `gi|..|ref|NAME|` its last part.
            name = next(filter(None, reversed([words[0], *words[0].split("|")])))
            pending = _Pending(name, layout)
            continue
        letters = part.translate(_TO_BASE)
        if wrong := _NO_BASE.search(letters):
            letter = part[wrong.start() : wrong.start() + 1].decode(errors="replace")
            raise DamagedFileError(f"line {number}: {letter!r} is no base (A, C, G, T, N or an ambiguity code)")
        if pending is not None:
            yield from pending.add(letters)
        elif letters:
            raise DamagedFileError(f"line {number}: a FASTA file must begin with '>' and a name")
    if pending is None:
        raise DamagedFileError("no sequence: a FASTA file must begin with '>' and a name")
    yield from pending.end()


class _Pending:
    """Bases of a sequence that are not yet part of a document."""

    def __init__(self, name: str, layout: FastaLayout) -> None:
        self._name = name
        self._intervals = list(layout.of(name))
        self._names_splits = bool(layout.intervals)
        self._at = 0  # position of the next base in the sequence
        self._held = bytearray()  # bases of the first interval

    def add(self, letters: bytes) -> Iterator[TextDocument]:
        while letters and self._intervals:
            start, end, _ = self._intervals[0]
            if self._at < start:
                skipped = min(start - self._at, len(letters))
                letters = letters[skipped:]
                self._at = self._at + skipped
                continue
            taken = len(letters) if end is None else min(end - self._at, len(letters))
            self._held += letters[:taken]
            letters = letters[taken:]
            self._at = self._at + taken
            if len(self._held) >= DOCUMENT_BASES:
                yield from self._cut(is_end=False)
            if self._at == end:
                yield from self._cut(is_end=True)
                del self._intervals[0]
        self._at += len(letters)

    def end(self) -> Iterator[TextDocument]:
        if self._intervals:
            last = self._intervals[-1]
            if last.end is not None and last.end > self._at:
                raise DamagedFileError(f"{self._name} has {self._at:,} bases, but a region of it ends at {last.end:,}")
            yield from self._cut(is_end=True)

    def _cut(self, *, is_end: bool) -> Iterator[TextDocument]:
        """Yields held documents, without the last one and a run of N after it, unless it is the end."""
        held = bytes(self._held)
        n = len(held) if is_end else len(held.rstrip(b"N"))
        *runs, last = _GAP.split(held[:n])
        kept = 0 if is_end else len(last) % DOCUMENT_BASES
        split = self._intervals[0].split if self._names_splits else ""
        for run in (*runs, last[: len(last) - kept]):
            for first in range(0, len(run), DOCUMENT_BASES):
                yield TextDocument(run[first : first + DOCUMENT_BASES].decode(), self._name, split)
        self._held[:] = last[len(last) - kept :] + held[n : n + GAP_BASES]


def _parts(file: Path) -> Iterator[bytes]:
    """Yields lines without their ends; lines longer than `PART_BYTES` in parts."""
    with reading(file) as stream:
        while part := stream.readline(PART_BYTES):
            yield part.rstrip(b"\r\n")
