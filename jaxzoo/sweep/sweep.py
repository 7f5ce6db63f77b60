"""A sweep: an experiment at a scale, in a directory."""

import dataclasses
import functools
import json
import os
import uuid
from typing import Any

from jaxzoo.sweep.directory import SweepDirectory
from jaxzoo.sweep.experiment import Experiment, Point, Scale, in_words
from jaxzoo.sweep.results import Row
from jaxzoo.sweep.task import Task


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What is asked, and where the answers are."""

    experiment: Experiment
    scale: Scale
    directory: SweepDirectory

    @functools.cached_property
    def points(self) -> list[tuple[Point, Task]]:
        """Every point with its run.

        Raises:
          ValueError: a point, which it names, has no valid config.
        """
        found: list[tuple[Point, Task]] = []
        for point in self.scale.points:
            try:
                found.append((point, Task.of(self.scale, point)))
            except ValueError as error:
                raise ValueError(f"point {in_words(point)}: {error}") from error
        return found

    @functools.cached_property
    def tasks(self) -> list[Task]:
        """Every run once, in the order of the points."""
        return list({task.id: task for _, task in self.points}.values())

    def rows(self) -> list[Row]:
        """The results by point.

        Raises:
          ValueError: `results.jsonl` of a sweep that was reported is damaged.
        """
        if not self.directory.has_runs:
            return self._reported()
        done = self.directory.done()
        return [{"point": dict(point), **self.directory.result(t.id)} for point, t in self.points if t.id in done]

    def failures(self) -> list[dict[str, Any]]:
        """`point`, `id` and what is kept of the failure, by point."""
        failed = self.directory.failed() - self.directory.done()
        known = {task: {"id": task, **self.directory.failure(task)} for task in failed}
        return [{"point": dict(point), **known[task.id]} for point, task in self.points if task.id in known]

    def _reported(self) -> list[Row]:
        try:
            return [json.loads(line) for line in self.directory.rows.read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.directory.rows} must hold a result in every line: {error}") from error

    def write_rows(self) -> None:
        """Makes `results.jsonl` anew, whole or not at all."""
        unfinished = self.directory.rows.with_name(f"{self.directory.rows.name}.{uuid.uuid4().hex[:8]}.tmp")
        unfinished.write_text("".join(json.dumps(row) + "\n" for row in self.rows()))
        os.replace(unfinished, self.directory.rows)
