"""What runs cost, before and while they are made."""

import functools
import math
import statistics
from collections.abc import Iterable, Mapping

import jax
import numpy as np

from jaxzoo.config import ExperimentConfig, RecallDataConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.accounting import flops_per_token, head_flops, layer_flops_per_token
from jaxzoo.sweep.task import Task
from jaxzoo.tasks.base import TaskConfig

PASSES = 3
"""Forward and backward, in forward passes."""
POWER = 0.6
"""Of the FLOPs in the time of a step, where too little is known to fit it."""


def train_flops(config: ExperimentConfig, steps: int | None = None) -> float:
    """FLOPs of `steps` updates (None: of all): mixers, MLPs, and the head where it is computed, at labelled positions.

    Counted as `flops_per_token` does, the backward pass as two forward passes.
    """
    n = config.train.steps if steps is None else steps
    model, data = config.model, config.data
    if not isinstance(data, RecallDataConfig):
        mean = model.max_length * flops_per_token(model, model.max_length)
    else:
        rows = sum(part.n_examples for part in data.train)
        mean = sum(part.n_examples / rows * _example_flops(model, part.task) for part in data.train)
    return PASSES * mean * config.train.batch_size * n


def _example_flops(model: LanguageModelConfig, task: TaskConfig) -> float:
    layers = sum(layer_flops_per_token(model, layer, task.length) for layer in model.layers)
    return task.length * layers + _n_labelled(task) * head_flops(model)


@functools.cache
def _n_labelled(task: TaskConfig) -> int:
    """Labelled positions of an example."""
    positions = jax.eval_shape(lambda: task.labelled(0, np.zeros(1, np.uint32))).positions
    return task.length if positions is None else positions.shape[1]


class Rates:
    """Seconds of a step, from those of runs that were made: a power of its FLOPs, times what its mixers take.

    Small steps do not take as much less as they compute less, hence the power; it is fitted where the FLOPs of the runs
    differ enough.

    Args:
      tasks: runs.
      step_seconds: seconds of a step of some of them, by id.
    """

    def __init__(self, tasks: Iterable[Task], step_seconds: Mapping[str, float]):
        known = [task for task in tasks if task.id in step_seconds and isinstance(task.config, ExperimentConfig)]
        x = np.log([train_flops(task.trained, 1) for task in known])
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
        return math.exp(offset + self._power * math.log(train_flops(task.config, 1))) * task.config.train.steps


def _kind(config: ExperimentConfig) -> str:
    return " ".join(type(mixer).__name__ for mixer in config.model.layers)
