"""FLOPs of a training run."""

import functools

import jax
import numpy as np

from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.accounting import head_flops, layer_flops_per_token, outer_flops
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.train.config import ExperimentConfig, RecallDataConfig

PASSES = 3
"""Forward and backward, in forward passes."""


def train_flops(config: ExperimentConfig, steps: int | None = None, *, length: int | None = None) -> float:
    """FLOPs of `steps` updates (None: of all): mixers, MLPs, and the head where it is computed, at labelled positions.

    Counted as `flops_per_token` does, the backward pass as two forward passes; what it computes again, for remat or a
    loss in chunks, does not count. Tasks count with their own lengths; other data have `length` tokens per row (None:
    the model's `max_length`), all with a label.
    """
    n = config.train.steps if steps is None else steps
    model, data = config.model, config.data
    if not isinstance(data, RecallDataConfig):
        t = model.max_length if length is None else length
        mean = _example_flops(model, t, t)
    else:
        rows = sum(part.n_examples for part in data.train)
        of = {part: _example_flops(model, part.task.length, _n_labelled(part.task)) for part in data.train}
        mean = sum(part.n_examples / rows * of[part] for part in data.train)
    return PASSES * mean * config.train.batch_size * n


def _example_flops(model: LanguageModelConfig, length: int, n_labelled: int) -> float:
    """One forward pass of an example of so many tokens."""
    layers = sum(layer_flops_per_token(model, layer, length) for layer in model.layers)
    return length * (layers + outer_flops(model)) + n_labelled * head_flops(model)


@functools.cache
def _n_labelled(task: TaskConfig) -> int:
    """Labelled positions of an example."""
    try:
        batch = jax.eval_shape(lambda: task.labelled(0, np.zeros(1, np.uint32)))
    except jax.errors.JAXTypeError:  # of a task that is made on the host
        batch = task.labelled(0, np.zeros(1, np.uint32))
    positions = batch.positions
    return task.length if positions is None else positions.shape[1]
