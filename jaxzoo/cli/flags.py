"""Command lines as dataclasses, read by tyro, and one clear line for each mistake."""

import contextlib
import dataclasses
import inspect
import io
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from jaxzoo.config.checked import Checked, nearest

Parsed = TypeVar("Parsed")
Config = TypeVar("Config")

HELP = ("-h", "--help")
PICTURES = (".png", ".svg", ".pdf")
"""Endings of files with pictures."""


class UsageError(ValueError):
    """A mistake on the command line or in a config file; the message is one line."""


def flag(metavar: str | None = None, name: str | None = None) -> Any:
    """Note of an option in `Annotated`: the word for its value in the help, and its name if it is not the field's."""
    return tyro.conf.arg(metavar=metavar, name=name, help_behavior_hint=_hint)


def _hint(default: str) -> str:
    return "" if default == "None" else f"(default: {default})"


def which_checkpoint(words: list[str]) -> int | Literal["best"]:
    """Value of an option `--checkpoint STEP|best`."""
    (text,) = words
    if text == "best":
        return "best"
    if not re.fullmatch("[0-9]+", text):
        raise UsageError(f"{text!r} must be the step of a checkpoint, or best")
    return int(text)


_CHECKPOINT = PrimitiveConstructorSpec(
    nargs=1,
    metavar="STEP|best",
    instance_from_str=which_checkpoint,
    is_instance=lambda value: True,
    str_from_instance=lambda value: [str(value)],
)
Checkpoint = Annotated[int | Literal["best"] | None, _CHECKPOINT]
Repeated = tyro.conf.UseAppendAction[tuple[str, ...]]
"""An option that may be given several times."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRunOptions(Checked):
    """Options that choose a state of a run."""

    checkpoint: Checkpoint = None
    """Step of the checkpoint, or best: that with the best validation; default: the newest."""
    config: Annotated[Repeated, flag("FILE")] = ()
    """The run's config file; needed where it defines classes of its own."""


def output_file(option: str, file: Path, *, endings: Sequence[str] = (), or_folder: bool = False) -> Path:
    """Returns the value of an option that names a file to write, with `~` expanded.

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


def parse_known(
    declared: Callable[..., Parsed], words: Sequence[str], *, prog: str, **options: Any
) -> tuple[Parsed, list[str]]:
    """Reads a dataclass, or the arguments of a function, off the command line; prints help and exits with 0 on --help.

    `options` are those of `tyro.cli`. Returns the value, and the words that are no option of it.

    Raises:
      UsageError: a wrong type, or a value that the dataclass refuses.
    """
    if isinstance(declared, type):  # a switch of a command has no --no-...; that of a config or a task may be on
        options = {"config": (tyro.conf.FlagCreatePairsOff,), **options}
    said = io.StringIO()
    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
            return tyro.cli(declared, prog=prog, args=list(words), return_unknown_args=True, **options)
    except SystemExit as stopped:
        if not stopped.code:
            _print_help(shown.getvalue())
            raise
        message = _error_message(stopped, said.getvalue())
    field = re.match(rf"{getattr(declared, '__name__', '')}\.(\w+)[.0-9]*=", message)
    if field:  # the option in place of the dataclass's field
        message = f"{options_of(declared)[field[1]]} {message[field.end() :]}"
    raise UsageError(message)


def _print_help(text: str) -> None:
    """Prints a help text; lines outside of tyro's boxes are fitted to the terminal."""
    width = shutil.get_terminal_size().columns
    for line in text.splitlines():
        print(textwrap.fill(line, width) if line[:1].isalpha() else line)


def parse_flags(
    declared: Callable[..., Parsed],
    words: Sequence[str],
    *,
    prog: str,
    known: Iterable[str] | None = None,
    **options: Any,
) -> Parsed:
    """Reads a whole command line as `parse_known` does.

    `known` are all flags, for the hint at a misspelt one (None: the fields of the dataclass).

    Raises:
      UsageError: also an unknown flag, with the nearest name.
    """
    result, rest = parse_known(declared, words, prog=prog, **options)
    if rest:
        if known is None:
            known = options_of(declared).values()
        raise UsageError(_unexpected(rest[0], known))
    return result


def options_of(declared: Callable[..., Any]) -> dict[str, str]:
    """Returns the option of every field of a dataclass, or argument of a function."""
    hints = typing.get_type_hints(declared, include_extras=True) if isinstance(declared, type) else {}
    names = {}
    for field in inspect.signature(declared).parameters:
        given = [getattr(note, "name", None) for note in typing.get_args(hints.get(field))]
        name = next(filter(None, given), field.replace("_", "-"))
        names[field] = f"--{name}"
    return names


def override(config: Config, flags: Sequence[str], *, prog: str, others: Iterable[str] = ()) -> Config:
    """Returns the config with fields replaced by dotted flags, as `parse_flags` does.

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
    """Yields all dotted flags of a config."""
    for field in dataclasses.fields(value):
        name = prefix + field.name.replace("_", "-")
        item = getattr(value, field.name)
        nested = enumerate(item) if isinstance(item, tuple) else [(None, item)]
        parts = [(i, part) for i, part in nested if dataclasses.is_dataclass(part)]
        if not parts:
            yield name
        for i, part in parts:
            yield from flags_of(part, f"{name}." if i is None else f"{name}.{i}.")


def _unexpected(word: str, known: Iterable[str]) -> str:
    """Message about a word that is no option: `--lr` is answered with `--optimizer.learning-rate`."""
    name = word.partition("=")[0]
    if not name.startswith("-"):
        return f"unexpected argument {word!r}; options are written --name value"
    known = sorted(known, key=lambda option: option.count("."))
    plain = name.lstrip("-").replace("_", "-")
    for option in known:
        field = option.lstrip("-").rpartition(".")[2]
        if plain in (field, "".join(part[:1] for part in field.split("-"))):
            return f"unknown option {name}; did you mean {option}?"
    return f"unknown option {name}" + nearest(name.replace("_", "-"), known).replace("'", "")


def _error_message(stopped: SystemExit, said: str) -> str:
    """Returns the message of a config's own check, else tyro's error in one line, without frame and help text."""
    words = " ".join(re.sub("[│╭╮╰╯─]|-{3,}", " ", said).split())
    words = re.split(" (?:Argument helptext:|For full helptext)", words)[0]
    union = re.search(r"(--\S+): no type matching (\S+) could be instantiated from \[(.*)\]\. Got errors", words)
    if union:
        return f"{union[1]}: {union[3]} must be {union[2].removeprefix('{None}|').replace('|', ' or ')}"
    missing = re.search(r"Missing from .*?: (--\S+)", words)
    if missing:
        return f"{missing[1]} is required; see --help"
    unread = re.search(r"Error parsing (--\S+): Could not find valid parse for arguments: \[(.*?)\]", words)
    if unread:
        return f"{unread[1]}: {unread[2]} cannot be read; see --help"
    _, is_of_flag, message = words.partition("Error parsing --")
    if is_of_flag:
        return f"--{message}"
    error: BaseException | None = stopped
    while error is not None and not isinstance(error, ValueError):
        error = error.__context__
    words = re.sub("^(?:Missing argument|Required options|Invalid choice|Value error) ", "", words)
    return str(error or re.sub("'None', |, 'None'", "", words))
