"""The command line: a config file, overrides by dotted flags, and one clear line for each mistake."""

import argparse
import contextlib
import dataclasses
import io
import runpy
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import tyro

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import nearest
from jaxzoo.train.run_dir import default_run_dir

Parsed = TypeVar("Parsed")

PROGRAM = "python -m jaxzoo.train"

DESCRIPTION = """Trains a model of sequence mixers on a recall task or on text. A config file sets every
field; any field can be overridden by its dotted name, such as --model.d-model 128 or
--model.pattern.1.n-heads 4. Add --config FILE to this --help to see all fields of that file with their
meaning and value."""


class UsageError(ValueError):
    """A mistake on the command line or in a config file; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Command:
    """What the command line asks for."""

    config: ExperimentConfig
    """The file's config with the overrides."""
    config_file: Path
    """The file."""
    run_dir: Path
    """Where the run lives."""
    resume: bool
    """Continue the run there."""
    overwrite: bool
    """Replace the run there."""
    print_model: bool
    """Describe the model and do nothing else."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse_command(argv: Sequence[str]) -> Command:
    """Reads the command line and the config file that it names; prints help and exits with 0 where asked to.

    Raises:
      UsageError: a mistake in either.
    """
    parser = _options()
    options, flags = parser.parse_known_args(argv)
    if options.help:
        print(parser.format_help())
        if options.config is None:
            raise SystemExit(0)
    if options.config is None:
        raise UsageError("--config FILE is required, such as --config configs/mqar/based.py; see --help")
    file = Path(options.config)
    config = override(load_config(file), [*flags, *(["--help"] if options.help else [])])
    return Command(
        config=config,
        config_file=file,
        run_dir=Path(options.run_dir).expanduser() if options.run_dir else default_run_dir(file),
        resume=options.resume,
        overwrite=options.overwrite,
        print_model=options.print_model,
    )


def _options() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description=DESCRIPTION, add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--config", metavar="FILE", help="Python file with `config`, a value or a function")
    parser.add_argument("--run-dir", metavar="DIR", help="directory of the run; default: runs/<config name>")
    parser.add_argument("--resume", action="store_true", help="continue the run in the directory, bit for bit")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in the directory")
    parser.add_argument("--print-model", action="store_true", help="describe the model and stop")
    return parser


def load_config(file: Path) -> ExperimentConfig:
    """Runs a Python file and takes its `config`: an `ExperimentConfig`, or a function that returns one.

    Raises:
      UsageError: the file is missing or fails (with its line), or gives no such thing.
    """
    if not file.is_file():
        raise UsageError(f"config file {file} does not exist")
    try:
        config = runpy.run_path(str(file)).get("config")
        config = config() if callable(config) else config
    except Exception as error:  # whatever the user's file raises
        raise UsageError(f"config file {file}{_line_of(error, file)}: {_last_line(error)}") from error
    if not isinstance(config, ExperimentConfig):
        raise UsageError(f"config file {file} must define `config`, an ExperimentConfig or a function giving one")
    return config


def override(config: ExperimentConfig, flags: Sequence[str]) -> ExperimentConfig:
    """The config with fields replaced by dotted flags.

    Raises:
      UsageError: an unknown flag (with the nearest name), a wrong type, or a value that the config refuses.
    """
    return parse_flags(
        ExperimentConfig,
        flags,
        prog=PROGRAM,
        known=flags_of(config),
        default=config,
        config=(tyro.conf.AvoidSubcommands,),
    )


def parse_flags(
    declared: type[Parsed], flags: Sequence[str], *, prog: str, known: Iterable[str], **options: Any
) -> Parsed:
    """Reads a dataclass off the command line; prints help and exits with 0 where asked to.

    Args:
      declared: the dataclass.
      flags: the words of the command line.
      prog: name of the program.
      known: all flags, for the hint at a misspelt one.
      **options: of `tyro.cli`.

    Raises:
      UsageError: as in `override`.
    """
    wants_help = "--help" in flags
    said = io.StringIO()
    try:
        with contextlib.nullcontext() if wants_help else contextlib.redirect_stderr(said):
            result, unknown = tyro.cli(declared, prog=prog, args=list(flags), return_unknown_args=True, **options)
    except SystemExit as stopped:
        if not stopped.code:
            raise
        raise UsageError(_complaint(stopped, said.getvalue())) from stopped
    if unknown:
        raise UsageError(_unknown(unknown[0], known))
    return result


def flags_of(value: Any, prefix: str = "--") -> Iterator[str]:
    """All dotted flags of a config."""
    for field in dataclasses.fields(value):
        name, item = prefix + field.name.replace("_", "-"), getattr(value, field.name)
        nested = enumerate(item) if isinstance(item, tuple) else [(None, item)]
        parts = [(i, part) for i, part in nested if dataclasses.is_dataclass(part)]
        if not parts:
            yield name
        for i, part in parts:
            yield from flags_of(part, f"{name}." if i is None else f"{name}.{i}.")


def _unknown(word: str, known: Iterable[str]) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {word!r}; options are written --name value"
    name = word.split("=")[0]
    hint = nearest(name.replace("_", "-"), known).replace("'", "")
    return f"unknown option {name}{hint}"


def _complaint(stopped: SystemExit, said: str) -> str:
    """One line: the message of a config's own check, else the first paragraph of the box that tyro draws."""
    body = _box_body(said)
    error: BaseException | None = stopped
    while error is not None and not body.startswith("Error parsing --"):
        if isinstance(error, ValueError):
            return str(error)
        error = error.__context__
    return body.removeprefix("Error parsing ")


def _box_body(said: str) -> str:
    """What stands between a box's title, which may be part of its frame, and the rule or frame below."""
    lines = [line.strip(" \t│╭╮╰╯─") for line in said.strip().splitlines()]
    groups: list[list[str]] = [[]]
    for line in lines:
        if line.strip("-"):
            groups[-1].append(line)
        elif groups[-1]:
            groups.append([])
    return " ".join(groups[0][1:] or groups[min(1, len(groups) - 1)])


def _line_of(error: Exception, file: Path) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file.absolute()]
    return f", line {frames[-1].lineno}" if frames else ""


def _last_line(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip()
