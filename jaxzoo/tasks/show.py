"""Prints MQAR examples, so that a newcomer sees what recall means: `python -m jaxzoo.tasks.mqar --show 3`."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Literal

import numpy as np
import tyro

from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks import mqar
from jaxzoo.tasks.base import Split

_COLUMNS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowConfig:
    """Prints examples of multi-query associative recall. At a target, the model must give the value that
    followed the same key in the context; `.` marks positions where nothing is asked."""

    show: int = 3
    """How many examples to print."""
    length: int = 16
    """Tokens in an example; even, at least 4 n_pairs, below vocab_size."""
    n_pairs: int = 2
    """Key-value pairs in an example."""
    vocab_size: int = 64
    """Tokens; the lower half are keys, the upper half values."""
    seed: int = 0
    """Seed of the examples."""
    split: Split = "train"
    """Which of the two disjoint sets of examples."""
    fillers: mqar.Fillers = "zero"
    """Tokens of empty positions: 0, anything but the example's keys, or anything."""
    variant: Literal["paper", "release"] = "paper"
    """Values and gap law as Zoology prints them, or as the authors' released code has them."""


def main(args: Sequence[str] | None = None) -> None:
    """Entry point; `args` defaults to the command line. Values that fit no task: one line on stderr, exit
    status 2."""
    try:
        config = tyro.cli(ShowConfig, prog="python -m jaxzoo.tasks.mqar", args=args)
        if config.show < 1:
            raise ValueError(f"ShowConfig.show={config.show} must be at least 1")
        preset = mqar.paper if config.variant == "paper" else mqar.release
        task = preset(config.length, config.n_pairs, vocab_size=config.vocab_size, fillers=config.fillers)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"keys 1..{task.n_keys}, values {task.first_value}..{task.vocab_size - 1}")
    tokens, targets = mqar.MQAR(task, batch_size=config.show).batch(config.seed, 0, config.split)
    for number, (example, labels) in enumerate(zip(np.asarray(tokens), np.asarray(targets), strict=True)):
        print(f"\n{config.split} example {number}")
        print(format_example(example.tolist(), labels.tolist()))


def format_example(tokens: Sequence[int], targets: Sequence[int]) -> str:
    """Rows of positions, tokens and targets, aligned, in blocks of 16 columns."""
    labels = ["." if target == UNLABELLED else str(target) for target in targets]
    rows = {"position": range(len(tokens)), "token": tokens, "target": labels}
    width = max(len(str(cell)) for row in rows.values() for cell in row) + 1
    blocks = []
    for start in range(0, len(tokens), _COLUMNS):
        cells = {name: row[start : start + _COLUMNS] for name, row in rows.items()}
        blocks.append(
            "\n".join(f"{name:8}" + "".join(f"{cell:>{width}}" for cell in row) for name, row in cells.items())
        )
    return "\n\n".join(blocks)
