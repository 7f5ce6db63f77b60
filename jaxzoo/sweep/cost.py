"""What runs cost, before and while they are made."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jaxzoo.config import ExperimentConfig, RecallDataConfig
from jaxzoo.models.accounting import flops_per_token
from jaxzoo.sweep.task import Task

PASSES = 3
"""Forward and backward, in forward passes."""


def train_flops(config: ExperimentConfig, steps: int | None = None) -> float:
    """FLOPs of `steps` updates (None: of all) by `flops_per_token`, which counts the head at every position."""
    n = config.train.steps if steps is None else steps
    if not isinstance(config.data, RecallDataConfig):
        lengths = {config.model.max_length: 1}
    else:
        lengths = {}
        for part in config.data.train:
            lengths[part.task.length] = lengths.get(part.task.length, 0) + part.n_examples
    rows = sum(lengths.values())
    mean = sum(share / rows * length * flops_per_token(config.model, length) for length, share in lengths.items())
    return PASSES * mean * config.train.batch_size * n


class Rates:
    """Seconds that runs take, from those of runs that were made: by mixers where one of the same was, else by all.

    Args:
      tasks: runs that were made.
      seconds: their seconds, by id.
    """

    def __init__(self, tasks: Sequence[Task], seconds: Mapping[str, float]):
        rates: dict[str, list[float]] = {}
        for task in tasks:
            if task.id in seconds and isinstance(task.config, ExperimentConfig):
                rates.setdefault(_kind(task.config), []).append(seconds[task.id] / train_flops(task.config))
        self._rates = {kind: statistics.median(found) for kind, found in rates.items()}

    def seconds(self, task: Task) -> float | None:
        """An estimate; None: nothing is known yet, or it is no training."""
        if not self._rates or not isinstance(task.config, ExperimentConfig):
            return None
        rate = self._rates.get(_kind(task.config), statistics.median(self._rates.values()))
        return rate * train_flops(task.config)


def _kind(config: Any) -> str:
    return " ".join(type(mixer).__name__ for mixer in config.model.layers)
