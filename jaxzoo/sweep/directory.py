"""Files of a sweep's directory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxzoo.config.json_files import decode_json, parse_json, read_json
from jaxzoo.train.run_dir import RunDirectory, check_name
from jaxzoo.utils.checksums import add_checksum, file_sha256, read_checked
from jaxzoo.utils.whole_files import refuse_links, write_whole
from jaxzoo.utils.work_queue import WorkQueue


class About(NamedTuple):
    """Contents of `sweep.json`: the experiment's part of a report, so that reports need not import the experiment."""

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
    """Number of points with a result once the sweep is finished."""
    untuned: str = ""
    """`Sweep.untuned`."""


class SweepDirectory:
    """The files of one sweep. Several workers write here, each file whole or not at all.

    Attributes:
      path: the directory, which need not exist.
      about: `sweep.json`.
      rows: `results.jsonl`, the results by point, one JSON object per line; written again from `results/`.
      running_folder: folder of the work queue.
      workers: folder for the output of workers.
    """

    def __init__(self, path: Path):
        self.path = path
        self.about: Path = path / "sweep.json"
        self.rows: Path = path / "results.jsonl"
        self._runs = path / "runs"
        self._results = path / "results"
        self._failures = path / "failures"
        self.running_folder: Path = path / "running"
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
        folders = (self._runs, self._results, self._failures, self.running_folder, self.workers)
        check_name(self.path.absolute())
        if self._runs.is_symlink():
            raise ValueError(f"{self._runs} must not be a link, or runs would be written elsewhere; remove it")
        refuse_links(self.about, self.rows, *folders[1:])
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        self.write_about(about)

    def write_about(self, about: About, *, is_reported: bool = False) -> None:
        """Writes `sweep.json`; once the results are reported, with the SHA-256 of their file."""
        digests = {self.rows.name: file_sha256(self.rows)} if is_reported else {}
        content = add_checksum({**about._asdict(), "sha256": digests})
        write_whole(self.about, json.dumps(content, ensure_ascii=False) + "\n")

    def read_about(self) -> About:
        """Reads `sweep.json`. Raises `ValueError` where it is missing or damaged."""
        content = self._read_about()
        content.pop("sha256", None)
        return decode_json(content, About)

    def check_rows(self) -> None:
        """Raises `ValueError` if the results have changed since they were reported."""
        digest = decode_json(self._read_about().get("sha256", {}), dict[str, str]).get(self.rows.name)
        if digest and not (self.rows.is_file() and file_sha256(self.rows) == digest):
            raise ValueError(f"{self.rows} is damaged, or was changed after the report; restore it")

    def _read_about(self) -> dict[str, Any]:
        try:
            return read_checked(self.about, dict)
        except FileNotFoundError:
            raise ValueError(f"{self.path} holds no sweep: {self.about.name} is missing") from None

    @property
    def has_runs(self) -> bool:
        """Whether the directory holds runs, not only the reported results of a sweep."""
        return self._results.is_dir()

    def run(self, run_id: str) -> RunDirectory:
        """The directory of a run."""
        return RunDirectory(self._runs / run_id)

    def done(self) -> set[str]:
        """Ids of the runs that have a result."""
        return _ids(self._results)

    def failed(self) -> set[str]:
        """Ids of the runs that have failed."""
        return _ids(self._failures)

    def has_result(self, run_id: str) -> bool:
        """Whether a run has a result."""
        return (self._results / f"{run_id}.json").exists()

    def is_settled(self, run_id: str) -> bool:
        """Whether a run has a result or has failed."""
        return self.has_result(run_id) or (self._failures / f"{run_id}.json").exists()

    def running(self, run_id: str, kind: str) -> Path:
        """The `lock` or the progress report (`json`) of a run, see `work_queue.py`; or its `cost` so far."""
        return self.running_folder / f"{run_id}.{kind}"

    def queue(self) -> WorkQueue:
        """The queue of the runs, for inspection."""
        return WorkQueue(self.running_folder)

    def result(self, run_id: str) -> dict[str, Any]:
        """Reads the result of a run. Raises `ValueError` where it is damaged."""
        file = self._results / f"{run_id}.json"
        remedy = "remove it: the run is made again"
        return checked_result(read_checked(file, dict[str, Any], remedy=remedy), str(file), remedy)

    def failure(self, run_id: str) -> dict[str, Any]:
        """Reads the reason why a run failed: `error`, one line, and perhaps a `traceback`."""
        failure = read_json(self._failures / f"{run_id}.json", FailedRun, remedy="remove it: the run is tried again")
        return {name: value for name, value in failure._asdict().items() if value is not None}

    def write_result(self, run_id: str, result: Mapping[str, Any]) -> None:
        """Keeps the result of a run."""
        write_whole(self._results / f"{run_id}.json", json.dumps(add_checksum(result)) + "\n")
        self.running(run_id, "cost").unlink(missing_ok=True)

    def write_failure(self, run_id: str, failure: Mapping[str, Any]) -> None:
        """Keeps the reason why a run failed."""
        write_whole(self._failures / f"{run_id}.json", json.dumps(failure) + "\n")

    def cost(self, run_id: str) -> tuple[float, float]:
        """Seconds and CPU-seconds so far of a stopped run; 0 if not recorded."""
        try:
            seconds, cpu_seconds = read_json(self.running(run_id, "cost"), tuple[float, float])
        except (OSError, ValueError):
            return 0.0, 0.0
        return seconds, cpu_seconds

    def write_cost(self, run_id: str, seconds: float, cpu_seconds: float) -> None:
        """Records the cost so far of an unfinished run."""
        write_whole(self.running(run_id, "cost"), json.dumps([seconds, cpu_seconds]) + "\n")

    def forget_failures(self) -> None:
        """Removes all failures, so that these runs are tried again."""
        for run_id in self.failed():
            self.running(run_id, "json").unlink(missing_ok=True)
            (self._failures / f"{run_id}.json").unlink(missing_ok=True)


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
