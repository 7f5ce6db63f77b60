"""Files of a sweep's directory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.whole_files import write_whole

REPORT = ("figure.png", "figure.svg", "table.md", "claims.json", "report.html")
"""Files that a report adds."""


class About(NamedTuple):
    """Contents of `sweep.json`."""

    experiment: str
    """Path of the experiment's file, as it was given."""
    scale: str
    """Name of the scale."""


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
        self.about = path / "sweep.json"
        self.rows = path / "results.jsonl"
        self._runs, self._results, self._failures = path / "runs", path / "results", path / "failures"
        self._running, self.workers = path / "running", path / "workers"

    def create(self, about: About) -> None:
        """Creates the directory, unless it exists for the same sweep.

        Raises:
          ValueError: it belongs to another sweep, or holds files of something else.
          OSError: it cannot be written.
        """
        if self.about.is_file():
            found = self.read_about()
            if found != about:
                raise ValueError(
                    f"{self.path} holds the sweep of {found.experiment} at scale {found.scale}, not of "
                    f"{about.experiment} at scale {about.scale}; choose another place with --out"
                )
        elif self.path.exists() and any(self.path.iterdir()):
            name = sorted(entry.name for entry in self.path.iterdir())[0]
            raise ValueError(f"{self.path} holds {name!r}, which no sweep wrote; choose another place with --out")
        for folder in (self._runs, self._results, self._failures, self._running, self.workers):
            folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.about, json.dumps(about._asdict()) + "\n")

    def read_about(self) -> About:
        """Reads `sweep.json`.

        Raises:
          ValueError: it is missing or damaged.
        """
        try:
            return About(**json.loads(self.about.read_text()))
        except FileNotFoundError:
            raise ValueError(f"{self.path} holds no sweep: {self.about.name} is missing") from None
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.about} must hold experiment and scale: {error}") from error

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
        """The `lock` or the progress report (`json`) of a run; see `queue.py`."""
        return self._running / f"{task}.{kind}"

    def reported(self) -> set[str]:
        """Ids of the runs that have a progress report."""
        return _ids(self._running)

    def result(self, task: str) -> dict[str, Any]:
        """The result of a run."""
        return json.loads((self._results / f"{task}.json").read_text())

    def failure(self, task: str) -> dict[str, Any]:
        """The reason why a run failed: `error`, one line, and perhaps a `traceback`."""
        return json.loads((self._failures / f"{task}.json").read_text())

    def write_result(self, task: str, result: Mapping[str, Any]) -> None:
        """Keeps the result of a run."""
        write_whole(self._results / f"{task}.json", json.dumps(result) + "\n")

    def write_failure(self, task: str, failure: Mapping[str, Any]) -> None:
        """Keeps the reason why a run failed."""
        write_whole(self._failures / f"{task}.json", json.dumps(failure) + "\n")

    def forget_failures(self) -> None:
        """Lets every run that has failed be tried again."""
        for task in self.failed():
            self.running(task, "json").unlink(missing_ok=True)
            (self._failures / f"{task}.json").unlink(missing_ok=True)


def _ids(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.json")}
