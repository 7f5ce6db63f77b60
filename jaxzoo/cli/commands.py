"""The table of commands and their entry points: `jaxzoo data-build` is `python -m jaxzoo.data.build`."""

import importlib
import sys
from typing import NoReturn

COMMANDS = {
    "train": "train a model on a recall task or on text",
    "sweep": "train all runs of an experiment, and make its figure, table and claims",
    "bench": "measure what a mixer recalls per byte of its state",
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
    "data-recall-statistics": "count repeated n-grams in token shards",
    "env": "print versions, devices and certified kernels, for bug reports",
    "data-demo-pile": "make a small corpus from the files of a Python installation",
}
"""Command -> one line of help; `data-build` is the module `jaxzoo.cli.data_build`."""

USAGE = "usage: jaxzoo COMMAND ...; jaxzoo COMMAND --help; jaxzoo --version"
INTERRUPTED = 130


def main() -> NoReturn:
    """Runs the command that the process's command line names, and ends the process."""
    match sys.argv[1:]:
        case [name, *rest] if name in COMMANDS:
            sys.argv = [f"jaxzoo {name}", *rest]
            _run(name)
        case [] | ["-h"] | ["--help"]:
            print(f"{USAGE}\n")
            for name, line in COMMANDS.items():
                print(f"  {name:{max(map(len, COMMANDS))}}  {line}")
            print("\npython -m jaxzoo.COMMAND is the same, such as python -m jaxzoo.train.")
        case ["--version"]:
            from jaxzoo import __version__

            print(f"jaxzoo {__version__}")
        case [name, *_]:
            from jaxzoo.config.checked import unknown

            print(f"error: {unknown('command', name, COMMANDS)}", file=sys.stderr)
            raise SystemExit(2)
    raise SystemExit(0)


def enter(name: str) -> None:
    """Runs the command of an entry file, given its `__name__`, if Python runs it as a program."""
    if name == "__main__":
        spec = sys.modules[name].__spec__
        assert spec  # run with -m
        module = spec.name.removesuffix(".__main__").partition(".")[2]
        _run(module.replace(".", "-").replace("_", "-"))


def _run(command: str) -> NoReturn:
    """Runs a command and ends the process; Ctrl-C during the imports gives one line too."""
    try:
        status = importlib.import_module(f"jaxzoo.cli.{command.replace('-', '_')}").main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED
    raise SystemExit(status)
