"""`jaxzoo COMMAND ...`, or `python -m jaxzoo.cli`: the commands of the package by name."""

import contextlib
import dataclasses
import importlib
import io
import re
import sys
from typing import Annotated, Any, NoReturn

import tyro

from jaxzoo import __version__
from jaxzoo.cli.door import enter
from jaxzoo.config.checked import unknown

COMMANDS = {
    "train": "train a model on a recall task or on text",
    "sweep": "train all runs of an experiment, and make its figure, table and claims",
    "evaluate": "score a run on its validation sets, on slices of text, or on tasks of lm_eval",
    "compare": "score several runs on the same data",
    "inspect": "draw which tokens a trained model depends on, in one example",
    "generate": "continue prompts",
    "tasks": "print examples of a recall task",
    "plan": "compile a training step for absent accelerators: memory, traffic, time",
    "linearize": "replace the attention of a run by a mixer with a state of fixed size",
    "convert": "read and write checkpoints of other libraries",
    "export": "write a run as one safetensors file, or read such a file",
    "classify": "finetune a run on labelled sequences",
    "tasks-records": "make an extraction task from installed packages",
    "data-build": "turn a corpus into a tensorflow-datasets directory",
    "data-tokenize": "turn a corpus into token shards",
    "data-train-tokenizer": "learn a tokenizer",
    "data-bigrams": "count bigrams of token shards",
    "data-recall-statistics": "count what can be recalled in token shards",
    "data-demo-pile": "make a small corpus from the files of a Python installation",
}
"""Command -> one line of help; `data-build` is the module `jaxzoo.cli.data_build`."""

SHELLS = ("bash", "zsh", "fish", "tcsh")
SELECTORS = {"train": ["--config", "mqar/based"], "plan": ["--config", "mqar/based"]}
"""Words that make a help text list the fields of a config."""


def main() -> NoReturn:
    """Runs the command that the process's command line names, and ends the process."""
    match sys.argv[1:]:
        case [name, *rest] if name in COMMANDS:
            sys.argv = [f"jaxzoo {name}", *rest]
            enter(name.replace("-", "_"))
        case [] | ["-h"] | ["--help"]:
            print(
                "usage: jaxzoo COMMAND ...; jaxzoo COMMAND --help; jaxzoo --version; jaxzoo --print-completion SHELL\n"
            )
            for name, line in COMMANDS.items():
                print(f"  {name:{max(map(len, COMMANDS))}}  {line}")
            print("\npython -m jaxzoo.COMMAND is the same, such as python -m jaxzoo.train.")
        case ["--version"]:
            print(f"jaxzoo {__version__}")
        case ["--print-completion", shell] if shell in SHELLS:  # tyro's script for the flags of the help texts
            tree: dict[str, Any] = {name: _flags(name) for name in COMMANDS}
            tyro.extras.subcommand_cli_from_dict(tree, prog="jaxzoo", args=["--tyro-print-completion", shell])
        case ["--print-completion", *_]:
            _refuse(f"--print-completion takes one of {', '.join(SHELLS)}")
        case [name, *_]:
            _refuse(unknown("command", name, COMMANDS))
    raise SystemExit(0)


def _flags(name: str) -> type:
    """A dataclass with the flags of a command's help text."""
    shown, module = io.StringIO(), name.replace("-", "_")
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        importlib.import_module(f"jaxzoo.cli.{module}").main([*SELECTORS.get(name, []), "--help"])
    flags = sorted(set(re.findall(r"--([a-z][\w.-]*)", shown.getvalue())) - {"help"})
    types = [Annotated[str, tyro.conf.arg(name=flag)] for flag in flags]
    return dataclasses.make_dataclass(module, [(f"f{i}", kind, "") for i, kind in enumerate(types)])


def _refuse(line: str) -> NoReturn:
    print(f"error: {line}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
