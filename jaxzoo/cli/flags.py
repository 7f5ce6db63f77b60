"""Command lines as dataclasses, read by tyro, and one clear line for each mistake."""

import argparse
import contextlib
import dataclasses
import inspect
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import tyro

from jaxzoo.config.checked import nearest

Parsed = TypeVar("Parsed")
Config = TypeVar("Config")


class UsageError(ValueError, argparse.ArgumentTypeError):
    """A mistake on the command line or in a config file; the message is one line, which argparse shows as it is."""


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


PICTURES = (".png", ".svg", ".pdf")
"""Endings of files with pictures."""


def output_file(option: str, file: Path, *, endings: Sequence[str] = (), or_folder: bool = False) -> Path:
    """The value of an option that names a file to write, with `~` expanded.

    Its directory must exist, it must be none itself (`or_folder`: may be), and have one of the `endings`, if any.
    """
    file = file.expanduser()
    if not file.parent.is_dir():
        raise UsageError(f"{option} {file}: its directory does not exist")
    if file.is_dir() and not or_folder:
        raise UsageError(f"{option} {file} is a directory; name a file")
    if endings and file.suffix not in endings:
        raise UsageError(f"{option} {file} must end in {', '.join(endings[:-1])} or {endings[-1]}")
    return file


def which_checkpoint(text: str) -> int | Literal["best"]:
    """Value of an option `--checkpoint STEP|best`."""
    if text == "best":
        return "best"
    if not re.fullmatch("[0-9]+", text):
        raise UsageError(f"{text!r} must be the step of a checkpoint, or best")
    return int(text)


def positive(text: str) -> int:
    """Value of an option that is a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{text!r} must be a positive number")
    return int(text)


def seed(text: str) -> int:
    """Value of an option that is a seed."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise UsageError(f"{text!r} must be in [0, 2^32)")
    return int(text)


def parse_flags(
    declared: Callable[..., Parsed],
    flags: Sequence[str],
    *,
    prog: str,
    known: Iterable[str] | None = None,
    **options: Any,
) -> Parsed:
    """Reads a dataclass, or the arguments of a function, off the command line; prints help and exits with 0 on --help.

    `known` are all flags, for the hint at a misspelt one (None: the fields of the dataclass); `options` are those of
    `tyro.cli`.

    Raises:
      UsageError: an unknown flag (with the nearest name), a wrong type, or a value that the dataclass refuses.
    """
    wants_help = "--help" in flags
    said = io.StringIO()
    try:
        with contextlib.nullcontext() if wants_help else contextlib.redirect_stderr(said):
            result, unknown = tyro.cli(declared, prog=prog, args=list(flags), return_unknown_args=True, **options)
    except SystemExit as stopped:
        if not stopped.code:
            raise
        raise UsageError(_error_message(stopped, said.getvalue())) from stopped
    if not unknown:
        return result
    name = unknown[0].split("=")[0]
    if not name.startswith("-"):
        raise UsageError(f"unexpected argument {unknown[0]!r}; options are written --name value")
    if known is None:
        known = [f"--{field.replace('_', '-')}" for field in inspect.signature(declared).parameters]
    raise UsageError(f"unknown option {name}" + nearest(name.replace("_", "-"), known).replace("'", ""))


def override(config: Config, flags: Sequence[str], *, prog: str, others: Iterable[str] = ()) -> Config:
    """The config with fields replaced by dotted flags, as `parse_flags` does.

    `others` are further flags of the program, for the hint at a misspelt one.
    """
    return parse_flags(
        type(config),
        flags,
        prog=prog,
        known=[*flags_of(config), *others],
        default=config,
        config=(tyro.conf.AvoidSubcommands,),
    )


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


def _error_message(stopped: SystemExit, said: str) -> str:
    """The message of a config's own check, else the words of tyro's error in one line, without frame and help text."""
    words = " ".join(re.sub("[│╭╮╰╯─]|-{3,}", " ", said).split())
    words = re.split(" (?:Argument helptext:|For full helptext)", words)[0]
    _, is_of_flag, message = words.partition("Error parsing --")
    if is_of_flag:
        return f"--{message}"
    error: BaseException | None = stopped
    while error is not None and not isinstance(error, ValueError):
        error = error.__context__
    return str(error or re.sub("^(?:Missing argument|Required options|Invalid choice|Value error) ", "", words))
