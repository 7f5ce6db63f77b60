"""Files of a sweep's directory."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxzoo.config.json_files import decode_json, parse_json, read_json
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.utils.checksums import add_checksum, file_sha256, read_checked
from jaxzoo.utils.whole_files import write_whole

REPORT = ("figure.png", "figure.svg", "table.md", "claims.json", "report.html")
"""Files that a report adds."""


class About(NamedTuple):
    """Contents of `sweep.json`: what a report says of the experiment, so that it is written without importing it."""

    experiment: str
    """Path of the experiment's file, as it was given."""
    scale: str
    """Name of the scale."""
    title: str = ""
    """Title of the figure."""
    about: str = ""
    """Content of the figure."""
    scale_about: str = ""
    """Sizes of the scale."""
    missing: tuple[str, ...] = ()
    """Parts of the paper's figure that this one lacks."""
    axes: tuple[str, ...] = ()
    """Axes of the points."""
    n_runs: int = 0
    """Number of points that have a result when all is done."""


class SweepDirectory:
    """The files of one sweep. Several workers write here, each file whole or not at all.

    Attributes:
      path: the directory, which need not exist.
      about: `sweep.json`.
      rows: `results.jsonl`, the results by point, one JSON object per line; written again from `results/`.
      workers: folder for the output of workers.
    """

    def __init__(self, path: Path):
        self.path = path
        self.about: Path = path / "sweep.json"
        self.rows: Path = path / "results.jsonl"
        self._runs, self._results, self._failures = path / "runs", path / "results", path / "failures"
        self._running = path / "running"
        self.workers: Path = path / "workers"

    def create(self, about: About) -> None:
        """Creates the directory, unless it exists for the same sweep.

        Raises:
          ValueError: it belongs to another sweep, or holds files of something else.
          OSError: it cannot be written.
        """
        if self.about.is_file():
            found = self.read_about()
            if found[:2] != about[:2]:
                raise ValueError(
                    f"{self.path} holds the sweep of {found.experiment} at scale {found.scale}, not of "
                    f"{about.experiment} at scale {about.scale}; choose another place with --out"
                )
        elif self.path.exists() and any(self.path.iterdir()):
            name = sorted(entry.name for entry in self.path.iterdir())[0]
            raise ValueError(f"{self.path} holds {name!r}, which no sweep wrote; choose another place with --out")
        folders = (self._runs, self._results, self._failures, self._running, self.workers)
        for place in (self.about, self.rows, *folders):
            if place.is_symlink():
                raise ValueError(f"{place} must not be a link, or runs would be written elsewhere; remove it")
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        self.write_about(about)

    def write_about(self, about: About, report: Path | None = None) -> None:
        """Writes `sweep.json`, with digests of the results and of the report that is kept in a folder."""
        files = [] if report is None else [self.rows, *(report / name for name in REPORT[:-1])]
        digests = {file.name: file_sha256(file) for file in files if file.is_file()}
        content = add_checksum({**about._asdict(), "sha256": digests})
        write_whole(self.about, json.dumps(content, ensure_ascii=False) + "\n")

    def read_about(self) -> About:
        """Reads `sweep.json`. Raises `ValueError` where it is missing or damaged."""
        content = self._read_about()
        content.pop("sha256", None)
        return decode_json(content, About)

    def check(self, files: Sequence[str]) -> None:
        """Raises `ValueError` where one of these files is not as it was when `sweep.json` was written."""
        digests = decode_json(self._read_about().get("sha256", {}), dict[str, str])
        for file in (self.path / name for name in files if name in digests):
            if not file.is_file() or file_sha256(file) != digests[file.name]:
                remedy = "restore it" if file == self.rows else "write the report again with --experiment"
                raise ValueError(f"{file} is damaged, or was changed after the report; {remedy}")

    def _read_about(self) -> dict[str, Any]:
        try:
            return read_checked(self.about, dict)
        except FileNotFoundError:
            raise ValueError(f"{self.path} holds no sweep: {self.about.name} is missing") from None

    @property
    def has_runs(self) -> bool:
        """Whether runs are made here; otherwise it keeps the reported results of a sweep."""
        return self._results.is_dir()

    def run(self, task: str) -> RunDirectory:
        """The directory of a run."""
        return RunDirectory(self._runs / task)

    def done(self) -> set[str]:
        """Ids of the runs that have a result."""
        return _ids(self._results)

    def failed(self) -> set[str]:
        """Ids of the runs that have failed."""
        return _ids(self._failures)

    def has_result(self, task: str) -> bool:
        """Whether a run has a result."""
        return (self._results / f"{task}.json").exists()

    def is_settled(self, task: str) -> bool:
        """Whether a run has a result or has failed."""
        return self.has_result(task) or (self._failures / f"{task}.json").exists()

    def running(self, task: str, kind: str) -> Path:
        """The `lock` or the progress report (`json`) of a run, see `queue.py`; or its `cost` so far."""
        return self._running / f"{task}.{kind}"

    def reported(self) -> set[str]:
        """Ids of the runs that have a progress report."""
        return _ids(self._running)

    def result(self, task: str) -> dict[str, Any]:
        """Reads the result of a run. Raises `ValueError` where it is damaged."""
        file, remedy = self._results / f"{task}.json", "remove it: the run is made again"
        return checked_result(read_checked(file, dict[str, Any], remedy=remedy), str(file), remedy)

    def failure(self, task: str) -> dict[str, Any]:
        """Reads the reason why a run failed: `error`, one line, and perhaps a `traceback`."""
        failure = read_json(self._failures / f"{task}.json", FailedRun, remedy="remove it: the run is tried again")
        return {name: value for name, value in failure._asdict().items() if value is not None}

    def write_result(self, task: str, result: Mapping[str, Any]) -> None:
        """Keeps the result of a run."""
        write_whole(self._results / f"{task}.json", json.dumps(add_checksum(result)) + "\n")
        self.running(task, "cost").unlink(missing_ok=True)

    def write_failure(self, task: str, failure: Mapping[str, Any]) -> None:
        """Keeps the reason why a run failed."""
        write_whole(self._failures / f"{task}.json", json.dumps(failure) + "\n")

    def cost(self, task: str) -> tuple[float, float]:
        """Seconds and CPU-seconds of a run that was stopped, before it goes on; 0 where nothing is kept of them."""
        try:
            seconds, cpu_seconds = read_json(self.running(task, "cost"), tuple[float, float])
        except (OSError, ValueError):
            return 0.0, 0.0
        return seconds, cpu_seconds

    def write_cost(self, task: str, seconds: float, cpu_seconds: float) -> None:
        """Keeps what a run has cost that is not done."""
        write_whole(self.running(task, "cost"), json.dumps([seconds, cpu_seconds]) + "\n")

    def forget_failures(self) -> None:
        """Lets every run that has failed be tried again."""
        for task in self.failed():
            self.running(task, "json").unlink(missing_ok=True)
            (self._failures / f"{task}.json").unlink(missing_ok=True)


class FailedRun(NamedTuple):
    """Contents of a file of `failures/`."""

    error: str
    traceback: str | None = None


class Facts(NamedTuple):
    """The fields of a result that every reader needs; the others are described in `results.py`."""

    id: str
    status: Literal["finished", "diverged"]
    metrics: dict[str, float]
    seconds: float
    cpu_seconds: float | None
    machine: str | None
    date: str
    commit: str | None
    versions: dict[str, str]


def checked_result(result: dict[str, Any], where: str, remedy: str = "") -> dict[str, Any]:
    """Returns a result, or a row, whose fields have their types; raises `ValueError`, which begins with `where`."""
    known = {name: value for name, value in result.items() if name in Facts._fields}
    parse_json(json.dumps(known), Facts, where=where, remedy=remedy)
    for name in ("curve", "guess", "point"):
        if not isinstance(result.get(name, {}), dict):
            raise ValueError(f"{where}: {name} must be an object" + (f"; {remedy}" if remedy else ""))
    return result


def _ids(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.json")}
