"""`python -m jaxzoo.tasks --task mqar --show 3`: prints examples, so that a newcomer sees what recall means."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jaxzoo.checked import Checked, PositiveInt, Seed
from jaxzoo.cli.flags import flags_of, parse_flags
from jaxzoo.cli.runner import run

PROGRAM = "python -m jaxzoo.tasks"

_COLUMNS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Prints examples of a recall task.

    mqar: multi-query associative recall. At a target, the model must give the value that followed the same key in
    the context; `.` marks positions where nothing is asked.
    """

    task: Literal["mqar"] = "mqar"
    """Which task."""
    show: PositiveInt = 3
    """How many examples to print."""
    length: PositiveInt = 16
    """Tokens in an example; even, at least 4 n_pairs, below vocab_size."""
    n_pairs: PositiveInt = 2
    """Key-value pairs in an example."""
    vocab_size: PositiveInt = 64
    """Tokens; the lower half are keys, the upper half values."""
    seed: Seed = 0
    """Seed of the examples."""
    split: Literal["train", "test"] = "train"
    """Which of the two disjoint sets of examples."""
    fillers: Literal["zero", "random", "any"] = "zero"
    """Tokens of empty positions: 0, anything but the example's keys, or anything."""
    variant: Literal["paper", "literal", "release"] = "paper"
    """Values and exponent as Zoology prints them, with the slots of the released code or (literal) at any position; or
    all as the authors' released code has it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(_show, argv)


def _show(argv: Sequence[str]) -> None:
    command = parse_flags(Command, argv, prog=PROGRAM, known=flags_of(Command()))

    import numpy as np

    from jaxzoo.data.base import UNLABELLED
    from jaxzoo.tasks import mqar

    preset = {"paper": mqar.paper, "literal": mqar.literal, "release": mqar.release}[command.variant]
    task = preset(command.length, command.n_pairs, vocab_size=command.vocab_size, fillers=command.fillers)
    print(f"keys 1..{task.n_keys}, values {task.first_value}..{task.vocab_size - 1}")
    tokens, targets = mqar.MQAR(task, batch_size=command.show).batch(command.seed, 0, command.split)
    for number, (example, answers) in enumerate(zip(np.asarray(tokens), np.asarray(targets), strict=True)):
        labels = ["." if answer == UNLABELLED else str(answer) for answer in answers.tolist()]
        print(f"\n{command.split} example {number}")
        print(format_example(example.tolist(), labels))


def format_example(tokens: Sequence[int], labels: Sequence[str]) -> str:
    """Rows of positions, tokens and targets, aligned, in blocks of 16 columns."""
    rows = {"position": range(len(tokens)), "token": tokens, "target": labels}
    width = max(len(str(cell)) for row in rows.values() for cell in row) + 1
    blocks = []
    for start in range(0, len(tokens), _COLUMNS):
        cells = {name: row[start : start + _COLUMNS] for name, row in rows.items()}
        blocks.append(
            "\n".join(f"{name:8}" + "".join(f"{cell:>{width}}" for cell in row) for name, row in cells.items())
        )
    return "\n\n".join(blocks)
