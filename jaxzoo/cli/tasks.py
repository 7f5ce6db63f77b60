"""`python -m jaxzoo.tasks --task mqar --show 3`: prints examples of a recall task."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from jaxzoo.cli.flags import ArgumentParser, UsageError, parse_flags, positive, seed
from jaxzoo.cli.runner import Main, run
from jaxzoo.cli.user_files import TASK_FLAG, find_class, normal_name
from jaxzoo.tasks.demos import DEMOS, Demo

if TYPE_CHECKING:
    from jaxzoo.tasks.base import TaskConfig

PROGRAM = "python -m jaxzoo.tasks"

DESCRIPTION = """Prints examples of a task: positions, tokens and targets, where `.` marks positions at which nothing is
asked. Each task has flags of its own: add --task NAME to this --help to see them."""

_COLUMNS = 16
OWN = ("--task", "--show", "--seed", "--split")
"""Options that all tasks share."""


def _show(argv: Sequence[str]) -> None:
    command, config = parse_command(argv)

    import numpy as np

    from jaxzoo.data.base import UNLABELLED

    print(f"{command.task}: {_demo(command.task).summary}\n{config.legend}")
    batch = config.labelled(command.seed, np.arange(command.show), command.split)
    targets = np.array(batch.targets)
    if batch.positions is not None:
        targets = np.full(batch.tokens.shape, UNLABELLED)
        np.put_along_axis(targets, np.asarray(batch.positions), np.asarray(batch.targets), axis=1)
    for number, (tokens, answers) in enumerate(zip(np.asarray(batch.tokens), targets, strict=True)):
        labels = ["." if answer == UNLABELLED else str(answer) for answer in answers.tolist()]
        shown = config.as_text(tokens, answers) or format_example(tokens.tolist(), labels)
        print(f"\n{command.split} example {number}\n{shown}")


def parse_command(argv: Sequence[str]) -> "tuple[argparse.Namespace, TaskConfig]":
    """Reads the command line; prints help and exits with 0 where asked to. Raises `ValueError`."""
    options, flags = _options().parse_known_args(argv)
    if options.help and options.task is None:
        print(_options(tasks=True).format_help(), end="")
        raise SystemExit(0)
    options.task = options.task or "mqar"
    demo = _demo(options.task)
    if options.task in DEMOS:
        others = {flag for each in DEMOS.values() for flag in each.flags}.difference(demo.flags)
        for word in flags:
            if (name := word.split("=")[0].replace("_", "-")) in others:
                raise UsageError(f"task {options.task} has no option {name}; it has {', '.join(demo.flags)}")
    if options.help:
        print(_options().format_help())
        flags = [*flags, "--help"]
    prog = f"{PROGRAM} --task {options.task}"
    return options, parse_flags(demo.build, flags, prog=prog, known=[*demo.flags, *OWN])


def _demo(task: str) -> Demo:
    """A registered task, or a class of an installed package or of the user's own."""
    if task in DEMOS:
        return DEMOS[task]
    from jaxzoo.tasks.base import TaskConfig

    found = find_class(task, TaskConfig, TASK_FLAG, {name: demo.build for name, demo in DEMOS.items()})
    return Demo((found.__doc__ or found.__name__).strip().splitlines()[0], found, {})


def _options(*, tasks: bool = False) -> argparse.ArgumentParser:
    """Parser of the options that all tasks share; with a list of the tasks where asked to."""
    width = max(map(len, DEMOS))
    rows = [f"  {name:{width}}  {demo.summary}" for name, demo in DEMOS.items()]
    parser = ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog="\n".join(["tasks:", *rows]) if tasks else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this help")
    add("--task", type=normal_name, metavar="NAME", help="which task, or FILE.py:NAME; default: mqar")
    add("--show", type=positive, default=3, metavar="N", help="how many examples to print; default: 3")
    add("--seed", type=seed, default=0, metavar="N", help="seed of the examples; default: 0")
    split = "train or test, two disjoint sets of examples; default: train"
    add("--split", choices=("train", "test"), default="train", metavar="NAME", help=split)
    return parser


def format_example(tokens: Sequence[int], labels: Sequence[str]) -> str:
    """Rows of positions, tokens and targets, aligned, in blocks of 16 columns."""
    rows = {"position": range(len(tokens)), "token": tokens, "target": labels}
    width = max(len(str(cell)) for row in rows.values() for cell in row) + 1
    blocks = []
    for start in range(0, len(tokens), _COLUMNS):
        parts = ((name, row[start : start + _COLUMNS]) for name, row in rows.items())
        blocks.append("\n".join(f"{name:8}" + "".join(f"{cell:>{width}}" for cell in part) for name, part in parts))
    return "\n\n".join(blocks)


main: Main = partial(run, _show)
