"""`jaxzoo tasks --task mqar --show 3`: prints examples of a recall task."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from jaxzoo.cli.flags import HELP, UsageError, flag, options_of, parse_flags
from jaxzoo.cli.runner import command_line
from jaxzoo.cli.user_files import TASK_FLAG, find_class, normal_name
from jaxzoo.config.checked import Checked, PositiveInt, Seed
from jaxzoo.tasks.demos import DEMOS, Demo
from jaxzoo.utils.text_table import text_table

if TYPE_CHECKING:
    from jaxzoo.tasks.base import TaskConfig

COLUMNS = 16
"""Positions of a row of the table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TasksCommand(Checked):
    """Prints examples of a task: positions, tokens and targets, where `.` marks positions without a target.
    Each task has flags of its own: add --task NAME to this --help to see them."""

    task: Annotated[str | None, flag("NAME")] = None
    """Which task, or FILE.py:NAME; default: mqar."""
    show: Annotated[PositiveInt, flag("N")] = 3
    """How many examples to print."""
    seed: Annotated[Seed, flag("N")] = 0
    """Seed of the examples."""
    split: Literal["train", "test"] = "train"
    """Two disjoint sets of examples."""


@command_line(selector="show")
def main(command: TasksCommand, flags: Sequence[str]) -> None:
    if command.task is None and set(HELP) & set(flags):
        print("\ntasks:")
        print(text_table([(f"  {name}", demo.summary) for name, demo in DEMOS.items()], left=2))
        return
    task = normal_name(command.task or "mqar")
    demo = find_demo(task)
    config = read_task(task, demo, flags)

    import numpy as np

    from jaxzoo.data.base import UNLABELLED

    print(f"{task}: {demo.summary}\n{config.legend}")
    batch = config.labelled(command.seed, np.arange(command.show), command.split)
    targets = np.array(batch.targets)
    if batch.positions is not None:
        targets = np.full(batch.tokens.shape, UNLABELLED)
        np.put_along_axis(targets, np.asarray(batch.positions), np.asarray(batch.targets), axis=1)
    for number, (tokens, answers) in enumerate(zip(np.asarray(batch.tokens), targets, strict=True)):
        labels = ["." if answer == UNLABELLED else str(answer) for answer in answers.tolist()]
        shown = config.as_text(tokens, answers) or format_example(tokens.tolist(), labels)
        print(f"\n{command.split} example {number}\n{shown}")


def find_demo(task: str) -> Demo:
    """Returns a registered task, or a class of an installed package or of the user's own."""
    if task in DEMOS:
        return DEMOS[task]
    from jaxzoo.tasks.base import TaskConfig

    found = find_class(task, TaskConfig, TASK_FLAG, {name: demo.build for name, demo in DEMOS.items()})
    return Demo((found.__doc__ or found.__name__).strip().splitlines()[0], found, {})


def read_task(task: str, demo: Demo, flags: Sequence[str]) -> "TaskConfig":
    """Returns the task with its own flags. Raises `ValueError`; a flag of another task is told so."""
    others = {flag for each in DEMOS.values() for flag in each.flags}.difference(demo.flags)
    for word in flags if task in DEMOS else ():
        name = word.partition("=")[0].replace("_", "-")
        if name in others:
            raise UsageError(f"task {task} has no option {name}; it has {', '.join(demo.flags)}")
    known = [*demo.flags, *options_of(TasksCommand).values()]
    return parse_flags(demo.build, flags, prog=f"jaxzoo tasks --task {task}", known=known)


def format_example(tokens: Sequence[int], labels: Sequence[str]) -> str:
    """Returns rows of positions, tokens and targets, aligned, in blocks of 16 columns."""
    rows = {"position": range(len(tokens)), "token": tokens, "target": labels}
    width = max(len(str(cell)) for row in rows.values() for cell in row) + 1
    blocks = []
    for start in range(0, len(tokens), COLUMNS):
        parts = {name: row[start : start + COLUMNS] for name, row in rows.items()}
        lines = [f"{name:8}" + "".join(f"{cell:>{width}}" for cell in part) for name, part in parts.items()]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
