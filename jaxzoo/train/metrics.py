"""Metric rows on disk: one JSON object per line with a checksum (`crc`), and the same numbers as TensorBoard events."""

import contextlib
import errno
import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]
from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
from tensorboardX.summary import hparams, scalar

from jaxzoo.config.json_files import read_regular
from jaxzoo.data.base import ValidSet
from jaxzoo.models.blueprint import names_of
from jaxzoo.utils.checksums import LINE_CHECKSUM, checked_line, read_line
from jaxzoo.utils.screen import warn
from jaxzoo.utils.whole_files import write_whole

Row = dict[str, float]
"""`{"step": 10, "train/loss": 2.5, ...}`."""


HIGHER_IS_BETTER = "valid/accuracy"
"""Prefix of metrics that are better if higher; all others (loss, bits per byte, perplexity) are better if lower."""


def read_rows(path: Path, *, whole: bool = False) -> list[Row]:
    """The rows of a metrics file, without a last line that a killed process left unfinished; none without a file.

    Other lines that are no rows, or damaged, are left out, with a warning; `whole`: raises `ValueError`. Rows of older
    versions, in whose files no line has a checksum, are taken as they are.
    """
    rows: list[Row] = []
    bad: list[str] = []
    lines = read_regular(path, 2**32).split(b"\n")[:-1] if path.exists() else []
    mark = f'"{LINE_CHECKSUM}": '.encode()
    are_checked = any(mark in line for line in lines)
    for number, line in enumerate(lines, 1):
        row = None if are_checked and mark not in line else _row(line)
        rows.append(row) if row else bad.append(str(number))
    if bad:
        numbers = f"{', '.join(bad[:5])}{', ...' if bad[5:] else ''}"
        message = f"{path}: line {numbers} holds no row of numbers, or a damaged one"
        if whole:
            raise ValueError(f"{message}; restore the file, or remove the line")
        warn(f"{message}; left out")
    return rows


def _row(line: bytes) -> Row | None:
    try:
        row = read_line(line)
    except ValueError:
        return None
    are_numbers = all(type(x) is float or (type(x) is int and abs(x) < 2**63) for x in row.values())
    return row if are_numbers and type(row.get("step")) is int else None


def best_steps(rows: Sequence[Row], metric: str, among: Collection[int] | None = None) -> list[int]:
    """The validated steps, the best first; of equal ones the earlier first.

    Args:
      metric: name of the metric; steps where it is not finite are left out.
      among: steps to consider; None: all.
    """
    sign = -1.0 if metric.startswith(HIGHER_IS_BETTER) else 1.0
    scores = {int(row["step"]): sign * row[metric] for row in rows if math.isfinite(row.get(metric, math.nan))}
    return sorted((s for s in scores if among is None or s in among), key=lambda step: (scores[step], step))


def metric_names(valid_sets: Sequence[ValidSet], bytes_per_token: float | None = None) -> list[str]:
    """The names of the metrics of `evaluate`, without evaluating anything."""
    slices = [f"{key}={value}" for key, value in slices_of(valid_sets)]
    names = ["valid/loss", "valid/accuracy", *(f"valid/accuracy/{each}" for each in slices)]
    if bytes_per_token is not None:
        names += ["valid/bits_per_byte", *(f"valid/bits_per_byte/{each}" for each in slices), "valid/perplexity"]
    return names


def slices_of(valid_sets: Sequence[ValidSet]) -> list[tuple[str, int]]:
    """Pairs (key, value) of all sets: keys in order of appearance, values of a key rising."""
    keys = list(dict.fromkeys(key for s in valid_sets for key in s.slices))
    return [(key, value) for key in keys for value in sorted({s.slices[key] for s in valid_sets if key in s.slices})]


class RowFile:
    """Appends rows to a file, after those that it begins with (others in it are cut); unbuffered, each whole or
    not at all."""

    def __init__(self, path: Path, rows: Sequence[Row] = ()):
        write_whole(path, "".join(map(checked_line, rows)), owned=True)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes one row, `{"step": step, **values}`.

        Raises:
          OSError: it could not be written whole.
        """
        line = checked_line({"step": step, **values}).encode()
        if self._file.write(line) != len(line):
            self._file.truncate(self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += len(line)


def rows_until(path: Path, step: int) -> list[Row]:
    """The rows of a file up to a step; a resumed run writes later ones again. -1: none."""
    return [row for row in read_rows(path) if row["step"] <= step] if step >= 0 else []


class MetricsLog:
    """Appends rows to `metrics.jsonl` and to a TensorBoard event file.

    Attributes:
      rows: all rows of the run, those from before a resume included.
      track: gets the numbers that TensorBoard gets, too; None: nobody.

    Args:
      path: of `metrics.jsonl`; the event file is made in the same directory. None: rows are kept in memory alone.
      keep_until: as `rows_until` takes it.
      n_rows: how many rows there must be up to `keep_until`; where some are missing, a warning says so.
      writes: whether it writes; otherwise it only knows the rows, as every process of a run must.
      config: of the run, as JSON; its fields go to TensorBoard, which compares runs by them.
    """

    def __init__(
        self,
        path: Path | None,
        keep_until: int = -1,
        *,
        n_rows: int = 0,
        writes: bool = True,
        config: Mapping[str, Any] | None = None,
    ):
        self.track: Callable[[int, dict[str, float]], None] | None = None
        self.rows: list[Row] = rows_until(path, keep_until) if path else []
        if keep_until >= 0 and len(self.rows) < n_rows:  # before the first update none is kept
            steps = [0, *(int(row["step"]) for row in self.rows), keep_until]
            begin, end = max(itertools.pairwise(steps), key=lambda pair: pair[1] - pair[0])
            gap = f"the learning curve has a gap, the widest from step {begin} to {end}"
            warn(f"{path} holds {len(self.rows)} of the {n_rows} rows up to step {keep_until}; {gap}")
        self._newest: dict[str, Row] = {}
        for row in self.rows:
            self._newest.update(dict.fromkeys(row, row))
        self._file: RowFile | None = None
        if path is None or not writes:
            return
        self._file = RowFile(path, self.rows)
        self._events = EventsWriter(str(path.parent / "events"), f".{os.getpid()}")
        restart = SessionLog(status=SessionLog.START)
        self._write_event(Event(wall_time=time.time(), step=keep_until + 1, session_log=restart))
        if config is not None:
            # Without a declaration of the experiment, TensorBoard finds out by itself which fields differ.
            _, fields, _ = hparams(names_of(config, "."), {})
            self._write_event(Event(wall_time=time.time(), summary=fields))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._file:
            return
        self._file.__exit__()
        with contextlib.suppress(OSError) if kind else contextlib.nullcontext():
            self._events.close()

    def write(self, step: int, metrics: dict[str, float]) -> Row:
        """Writes one row, `{"step": step, **metrics}`, and returns it; raises as `RowFile.write` does."""
        if self._file:
            self._file.write(step, metrics)
        row: Row = {"step": step, **metrics}
        self.rows.append(row)
        self._newest.update(dict.fromkeys(row, row))
        self.chart(step, metrics)
        return row

    def chart(self, step: int, metrics: dict[str, float]) -> None:
        """Sends numbers to TensorBoard and trackers only."""
        if not self._file:
            return
        if self.track:
            self.track(step, metrics)
        values = [scalar(name, value).value[0] for name, value in metrics.items()]
        self._write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def last(self, name: str) -> Row | None:
        """The newest row that holds `name`."""
        return self._newest.get(name)

    def _write_event(self, event: Event) -> None:
        self._events.write_event(event)
        self._events.flush()
