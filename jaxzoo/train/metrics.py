"""Metric rows on disk: one JSON object a line, and the same numbers as TensorBoard events."""

import contextlib
import errno
import itertools
import json
import math
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]
from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
from tensorboardX.summary import scalar

from jaxzoo.screen import warn
from jaxzoo.train.patience import patiently
from jaxzoo.whole_files import write_rows

Row = dict[str, float]
"""`{"step": 10, "train/loss": 2.5, ...}`."""


HIGHER_IS_BETTER = "valid/accuracy"
"""Beginning of the names of metrics of which more is better; of all others (loss, bits per byte, perplexity) less."""


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file, without a last line that a killed process left unfinished; none without a file.

    Other lines that are no rows are left out, with a warning.
    """
    rows: list[Row] = []
    bad: list[str] = []
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        rows.append(row) if row else bad.append(str(number))
    if bad:
        warn(f"{path}: line {', '.join(bad[:5])}{', ...' if bad[5:] else ''} holds no row of numbers; left out")
    return rows


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    numbers = isinstance(row, dict) and all(type(value) in (int, float) for value in row.values())
    return row if numbers and type(row.get("step")) is int else None


def best_steps(rows: Sequence[Row], metric: str, among: Collection[int] | None = None) -> list[int]:
    """The steps that were validated, the best first; of two that are equal the earlier one.

    Args:
      rows: metrics of the run.
      metric: the one that counts; steps where it is not finite are left out.
      among: the steps that are asked for; None: all.
    """
    sign = -1.0 if metric.startswith(HIGHER_IS_BETTER) else 1.0
    scores = {int(row["step"]): sign * row[metric] for row in rows if math.isfinite(row.get(metric, math.nan))}
    return sorted((s for s in scores if among is None or s in among), key=lambda step: (scores[step], step))


class MetricsLog:
    """Appends rows to `metrics.jsonl` and to a TensorBoard event file, unbuffered.

    Attributes:
      rows: all rows of the run, those of before a resume included.

    Args:
      path: of `metrics.jsonl`; the event file is made beside it.
      keep_until: rows of later steps, which a resumed run will write again, are cut; -1 cuts all.
      n_rows: how many rows there must be up to `keep_until`; where some are missing, a warning says so.
      writes: whether it writes; otherwise it only knows the rows, as every process of a run must.
    """

    def __init__(self, path: Path, keep_until: int = -1, *, n_rows: int = 0, writes: bool = True):
        self.rows = [row for row in read_rows(path) if row["step"] <= keep_until] if keep_until >= 0 else []
        if len(self.rows) < n_rows:
            warn(f"{path} holds {len(self.rows)} of the {n_rows} rows up to step {keep_until}; {self._gap(keep_until)}")
        self._newest: dict[str, Row] = {}
        for row in self.rows:
            self._newest.update(dict.fromkeys(row, row))
        self._file: IO[bytes] | None = None
        if not writes:
            return
        write_rows(path, self.rows, owned=True)
        self._path, self._file = path, path.open("ab", buffering=0)
        self._size = path.stat().st_size
        self._events = EventsWriter(str(path.parent / "events"), f".{os.getpid()}")
        restart = SessionLog(status=SessionLog.START)
        self._write_event(Event(wall_time=time.time(), step=keep_until + 1, session_log=restart))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        if not self._file:
            return
        self._file.close()
        with contextlib.suppress(OSError) if error else contextlib.nullcontext():
            self._events.close()

    def write(self, step: int, metrics: dict[str, float]) -> Row:
        """Writes one row, `{"step": step, **metrics}`, and returns it; tries again what fails.

        Raises:
          OSError: it could not be written whole, with all patience.
        """
        row: Row = {"step": step, **metrics}
        if self._file:
            line = (json.dumps(row) + "\n").encode()
            patiently(lambda: self._append(line), str(self._path))
        self.rows.append(row)
        self._newest.update(dict.fromkeys(row, row))
        self.chart(step, metrics)
        return row

    def chart(self, step: int, metrics: dict[str, float]) -> None:
        """Sends numbers to TensorBoard alone."""
        if not self._file:
            return
        values = [scalar(name, value).value[0] for name, value in metrics.items()]
        self._write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _append(self, line: bytes) -> None:
        """Writes the line whole, or leaves the file as it was."""
        assert self._file
        if self._file.write(line) != len(line):
            self._file.truncate(self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(line)

    def last(self, name: str) -> Row | None:
        """The newest row that holds `name`."""
        return self._newest.get(name)

    def _gap(self, end: int) -> str:
        steps = [0, *(int(row["step"]) for row in self.rows), end]
        begin, end = max(itertools.pairwise(steps), key=lambda pair: pair[1] - pair[0])
        return f"the learning curve has a gap, the widest from step {begin} to {end}"

    def _write_event(self, event: Event) -> None:
        self._events.write_event(event)
        patiently(self._events.flush, str(self._path.parent / "events"))
