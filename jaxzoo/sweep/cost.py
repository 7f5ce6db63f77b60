"""Estimates of the time of runs, from runs that were made."""

import itertools
import statistics
from collections.abc import Iterable, Mapping

from jaxzoo.config import ExperimentConfig
from jaxzoo.sweep.task import Task

POWER = 0.6
"""Power of the FLOPs in the time per step: small steps do not take as much less as they compute less."""


class Rates:
    """Seconds per step, in proportion to a power of the FLOPs, by those of some tasks, which `step_seconds` has."""

    def __init__(self, tasks: Iterable[Task], step_seconds: Mapping[str, float]):
        self._rates: dict[str, list[float]] = {}
        for task in tasks:
            if task.id in step_seconds and isinstance(task.config, ExperimentConfig):
                rates = self._rates.setdefault(_mixers(task.config), [])
                rates.append(step_seconds[task.id] / task.step_flops**POWER)

    def seconds(self, task: Task) -> float | None:
        """An estimate for all steps of a run, by runs of the same mixers or else by all; None: nothing is known yet,
        or it is no training."""
        if not self._rates or not isinstance(task.config, ExperimentConfig):
            return None
        rates = self._rates.get(_mixers(task.config)) or itertools.chain(*self._rates.values())
        return statistics.median(rates) * task.step_flops**POWER * task.config.train.steps


def _mixers(config: ExperimentConfig) -> str:
    return " ".join(type(mixer).__name__ for mixer in config.model.layers)
