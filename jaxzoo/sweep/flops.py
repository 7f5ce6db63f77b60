"""What a run computes."""

import functools

import jax
import numpy as np

from jaxzoo.config import ExperimentConfig, RecallDataConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.accounting import flops_per_token, head_flops, layer_flops_per_token
from jaxzoo.tasks.base import TaskConfig

PASSES = 3
"""Forward and backward, in forward passes."""


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
