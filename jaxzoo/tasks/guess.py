"""Guessing lines of recall tasks: the best accuracy of an answer that looks at no key."""

import functools
from collections.abc import Mapping

import numpy as np

from jaxzoo.data.base import UNLABELLED, DataConfig
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.tasks.recall_data import RecallDataConfig

EXAMPLES = 1024
"""Examples from which a line is counted."""


@functools.cache
def guessing_line(task: TaskConfig) -> float:
    """The accuracy of the best answer that knows the position of a question and nothing else.

    At each position the answer is either one fixed token (the most frequent target, such as "no match") or the token at
    one fixed earlier position (one of the values, whichever is most often right). It is at least one over the number
    of the candidate values. Counted over `EXAMPLES` examples, as accuracies are: the mean over the questions.
    """
    batch = task.labelled(0, np.arange(EXAMPLES), "test")
    tokens, targets = task.copied(np.asarray(batch.tokens)), np.asarray(batch.targets)
    positions = np.broadcast_to(np.arange(task.length) if batch.positions is None else batch.positions, targets.shape)
    asked = targets != UNLABELLED
    hits = 0.0
    for position in np.unique(positions[asked]):
        rows, columns = np.nonzero(asked & (positions == position))
        target = targets[rows, columns]
        fixed = np.bincount(target).max()
        copied = (tokens[rows, : position + 1] == target[:, None]).sum(0).max()
        hits += float(max(fixed, copied))
    return hits / max(1, int(asked.sum()))


def guessing_lines(data: DataConfig) -> Mapping[str, float]:
    """Guessing lines by the name of the metric: `valid/accuracy` and its slices; for data of other kinds their own."""
    if not isinstance(data, RecallDataConfig):
        return data.guessing_lines()
    weights: dict[str, list[tuple[int, float]]] = {}
    for examples in data.valid:
        names = [f"valid/accuracy/{key}={value}" for key, value in examples.task.slices.items()]
        for name in ("valid/accuracy", *names):
            weights.setdefault(name, []).append((examples.n_examples, guessing_line(examples.task)))
    return {
        name: round(sum(n * line for n, line in parts) / sum(n for n, _ in parts), 4) for name, parts in weights.items()
    }
