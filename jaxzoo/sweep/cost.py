"""Estimates of the time of runs, from runs that were made."""

import math
import statistics
from collections.abc import Iterable, Mapping

import numpy as np

from jaxzoo.config import ExperimentConfig
from jaxzoo.sweep.task import Task

POWER = 0.6
"""Power of the FLOPs in the time per step, where too few runs are known to fit it."""


class Rates:
    """Seconds per step, from runs that were made: a power of the FLOPs, times a factor of the mixers.

    Small steps do not take as much less as they compute less, hence the power; it is fitted where the FLOPs of the runs
    differ enough. `step_seconds` has the seconds per step of some of the tasks, by id.
    """

    def __init__(self, tasks: Iterable[Task], step_seconds: Mapping[str, float]):
        known = [task for task in tasks if task.id in step_seconds and isinstance(task.config, ExperimentConfig)]
        x = np.log([task.step_flops for task in known])
        y = np.log([max(step_seconds[task.id], 1e-6) for task in known])
        self._power = POWER if len(known) < 3 or np.ptp(x) < 1 else float(np.clip(np.polyfit(x, y, 1)[0], 0, 1))
        self._offsets: dict[str, list[float]] = {}
        for task, offset in zip(known, y - self._power * x, strict=True):
            self._offsets.setdefault(_kind(task.trained), []).append(offset)

    def seconds(self, task: Task) -> float | None:
        """An estimate for all steps of a run; None: nothing is known yet, or it is no training."""
        if not self._offsets or not isinstance(task.config, ExperimentConfig):
            return None
        everything = [offset for found in self._offsets.values() for offset in found]
        offset = statistics.median(self._offsets.get(_kind(task.config), everything))
        return math.exp(offset + self._power * math.log(task.step_flops)) * task.config.train.steps


def _kind(config: ExperimentConfig) -> str:
    return " ".join(type(mixer).__name__ for mixer in config.model.layers)
