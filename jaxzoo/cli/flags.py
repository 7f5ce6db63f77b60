"""Command lines as dataclasses, parsed by tyro, with one-line errors."""

import contextlib
import dataclasses
import functools
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

from jaxzoo.config.checked import Checked, NonNegativeInt, nearest, unknown

Parsed = TypeVar("Parsed")
Config = TypeVar("Config")

HELP = ("-h", "--help")
PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of picture files."""


class UsageError(ValueError):
    """A mistake on the command line or in a config file; the message is one line."""


def flag(metavar: str | None = None, name: str | None = None) -> Any:
    """Annotation of an option: the placeholder of its value in the help, and its name (default: that of the field)."""

    def hint(default: str) -> str:
        return "" if default == "None" else f"(default: {default})"

    return tyro.conf.arg(metavar=metavar, name=name, help_behavior_hint=hint)


Repeated = tyro.conf.UseAppendAction[tuple[str, ...]]
"""An option that may be given several times."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRunOptions(Checked):
    """Options that choose a checkpoint of a run."""

    checkpoint: Annotated[NonNegativeInt | Literal["best"] | None, flag("STEP|best")] = None
    """Step of the checkpoint, or best: the one with the best validation; default: the newest."""
    config: Annotated[Repeated, flag("FILE")] = ()
    """The run's config file; needed where it defines classes of its own."""


def output_file(option: str, file: Path, *, endings: Sequence[str] = (), or_folder: bool = False) -> Path:
    """Checks the value of an option that names a file to write, and returns it with `~` expanded."""
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
    """Parses a dataclass, or the arguments of a function, and prints the help on --help, or of one group of fields of
    a config (`default` among the options) on --help GROUP.

    `options` are passed to `tyro.cli`. Returns the value and the remaining words.

    Raises:
      UsageError: a wrong type, or a value that the dataclass refuses.
      SystemExit: after the help, with code 0.
    """
    if isinstance(declared, type):  # flags of commands have no --no-...; those of configs and tasks do
        options = {"config": (tyro.conf.FlagCreatePairsOff,), **options}
    said = io.StringIO()
    shown = io.StringIO()
    words, topic = split_help(words)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
            return tyro.cli(declared, prog=prog, args=list(words), return_unknown_args=True, **options)
    except SystemExit as stopped:
        if not stopped.code:
            is_config = "default" in options
            _print_help(shown.getvalue(), topic, is_config=is_config, is_command=not is_config and "config" in options)
            raise
        message = _error_message(stopped, said.getvalue())
    field = re.match(rf"{getattr(declared, '__name__', '')}\.(\w+)[.0-9]*=", message)
    if field:  # name the option, not the field of the dataclass
        message = f"{options_of(declared)[field[1]]} {message[field.end() :]}"
    raise UsageError(message)


def split_help(words: Sequence[str]) -> tuple[list[str], str]:
    """Returns the words without what follows --help, and the group of fields after it ("": none)."""
    at = next((i + 1 for i, word in enumerate(words) if word in HELP), len(words))
    topic = "".join(words[at : at + 1])
    if not topic or topic.startswith("-"):
        return list(words), ""
    return [*words[:at], *words[at + 1 :]], topic


def _print_help(text: str, topic: str, *, is_config: bool, is_command: bool) -> None:
    """Prints options and their help; of a config, one line per group of fields, or the fields of one group or of all.

    Args:
      text: help as tyro draws it.
    """
    head, *parts = re.split(r"^ (\S*) ?(?:options|arguments) *\n -{3,} *\n", text, flags=re.MULTILINE)
    groups = dict(zip(parts[::2], map(_entries, parts[1::2]), strict=True))
    width = shutil.get_terminal_size().columns
    fill = functools.partial(textwrap.fill, width=width, break_on_hyphens=False, break_long_words=False)
    if is_command:
        usage, _, description = head.partition("\n")
        print(fill(usage), fill(" ".join(description.split())), sep="\n\n")
    if is_config:
        groups.pop("", None)  # --help
    if is_config and not topic:
        print("\nfields of the config by group; --help GROUP for one, --help all for all:")
        for name, ((_, about), *fields) in groups.items():
            print(fill(f"  {name} ({len(fields)}){about and f': {about}'}", subsequent_indent="      "))
        return
    shown = [name for name in groups if not is_config or topic == "all" or f"{name}.".startswith(f"{topic}.")]
    if not shown:
        raise UsageError(f"--help {topic}: {unknown('group', topic, groups)}")
    for name in shown:
        (_, about), *fields = groups[name]
        print(fill(f"\n{name or 'options'}{about and f': {about}'}", replace_whitespace=False))
        for option, words in fields:
            print(fill(option, initial_indent="  ", subsequent_indent="    "))
            print(fill(words, initial_indent="      ", subsequent_indent="      "))


def _entries(body: str) -> list[list[str]]:
    """Options of a group and their help, after the description of the group."""
    found = [["", ""]]
    for line in body.splitlines():
        words = line.strip()
        if line.startswith("  -") and not words.startswith("---"):
            found.append([*re.split(r" {2,}", words, maxsplit=1), ""][:2])
        elif words.strip("-"):
            wrapped = len(found) > 1 and not found[-1][1] and not line.startswith("      ")  # the option itself
            found[-1][not wrapped] = f"{found[-1][not wrapped]} {words}".strip()
    return found


def parse_flags(
    declared: Callable[..., Parsed],
    words: Sequence[str],
    *,
    prog: str,
    known: Iterable[str] | None = None,
    **options: Any,
) -> Parsed:
    """Parses a command line as `parse_known` does; raises `UsageError` for an unknown flag, too.

    `known` are the flags for suggestions in the message (None: the fields of the dataclass).
    """
    result, rest = parse_known(declared, words, prog=prog, **options)
    if rest:
        raise UsageError(_unexpected(rest[0], options_of(declared).values() if known is None else known))
    return result


def options_of(declared: Callable[..., Any]) -> dict[str, str]:
    """Maps each field of a dataclass, or argument of a function, to its option."""
    hints = typing.get_type_hints(declared, include_extras=True) if isinstance(declared, type) else {}
    names = {}
    for field in inspect.signature(declared).parameters:
        given = [getattr(note, "name", None) for note in typing.get_args(hints.get(field))]
        name = next(filter(None, given), field.replace("_", "-"))
        names[field] = f"--{name}"
    return names


def override(config: Config, flags: Sequence[str], *, prog: str, others: Iterable[str] = ()) -> Config:
    """Returns the config with fields replaced by dotted flags; `others` are more flags for suggestions."""
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
    """Error message for an unknown option; for `--lr` it suggests `--optimizer.learning-rate`."""
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
    """Returns the message of a config's own check, otherwise tyro's error as one line."""
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
