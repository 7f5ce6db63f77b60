"""A sweep's directory: what lies in it, and the care that nothing is lost."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.whole_files import write_whole

REPORT = ("figure.png", "figure.svg", "table.md", "claims.json", "report.html")
"""Files that a report adds."""


class About(NamedTuple):
    """What a sweep makes: `sweep.json`."""

    experiment: str
    """Path of the experiment's file, as it was given."""
    scale: str
    """Name of the scale."""


class SweepDirectory:
    """The files of one sweep. Several workers write here, each file whole or not at all.

    Attributes:
      path: the directory, which need not exist.
      rows: the results by point, one JSON object a line; made anew from `results/`.
    """

    def __init__(self, path: Path):
        self.path = path
        self.about = path / "sweep.json"
        self.rows = path / "results.jsonl"
        self._runs, self._results, self._failures = path / "runs", path / "results", path / "failures"
        self.claims, self.workers = path / "claims", path / "workers"

    def create(self, about: About) -> None:
        """Makes the directory, or finds it made for the same sweep.

        Raises:
          ValueError: it is another sweep's, or holds what no sweep wrote.
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
        for folder in (self._runs, self._results, self._failures, self.claims, self.workers):
            folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.about, json.dumps(about._asdict()) + "\n")

    def read_about(self) -> About:
        """What is made here.

        Raises:
          ValueError: no sweep is.
        """
        try:
            return About(**json.loads(self.about.read_text()))
        except FileNotFoundError:
            raise ValueError(f"{self.path} holds no sweep: {self.about.name} is missing") from None
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.about} must hold experiment and scale: {error}") from error

    @property
    def has_runs(self) -> bool:
        """Whether runs are made here; else it keeps what was reported of a sweep."""
        return self._results.is_dir()

    def run(self, task: str) -> RunDirectory:
        """Where a run lives."""
        return RunDirectory(self._runs / task)

    def done(self) -> set[str]:
        """The ids of the runs that have a result."""
        return _ids(self._results)

    def failed(self) -> set[str]:
        """The ids of those that have failed."""
        return _ids(self._failures)

    def result(self, task: str) -> dict[str, Any]:
        """What a run gave."""
        return json.loads((self._results / f"{task}.json").read_text())

    def failure(self, task: str) -> dict[str, Any]:
        """Why a run failed: `error`, one line, and perhaps a `traceback`."""
        return json.loads((self._failures / f"{task}.json").read_text())

    def write_result(self, task: str, result: Mapping[str, Any]) -> None:
        """Keeps what a run gave."""
        write_whole(self._results / f"{task}.json", json.dumps(result) + "\n")

    def write_failure(self, task: str, failure: Mapping[str, Any]) -> None:
        """Keeps why a run failed."""
        write_whole(self._failures / f"{task}.json", json.dumps(failure) + "\n")

    def forget_failures(self) -> None:
        """Lets every run that has failed be tried again."""
        for task in self.failed():
            for claim in self.claims.glob(f"{task}.*"):
                claim.unlink(missing_ok=True)
            (self._failures / f"{task}.json").unlink(missing_ok=True)


def _ids(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.json")}
