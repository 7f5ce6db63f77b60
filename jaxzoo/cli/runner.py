"""Runs commands, with the same exit statuses and one-line errors for all of them.

0: done; 1: failed in the middle, or out of memory; 2: refused, or failed to read or write; 130: interrupted;
141: the reader of the output is gone.
"""

import contextlib
import inspect
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jaxzoo.cli.flags import HELP, UsageError, parse_flags, parse_known, split_help
from jaxzoo.utils.screen import Failure, Screen, is_muted

HALF_LINE = 1000
"""Characters at each end of an error message that are printed; the middle of a longer one is left out."""
LEAST_FILES = 256
GOES_ON = "interrupted; the same command continues from here"
"""Message after Ctrl-C of commands that continue unfinished work."""

Main: TypeAlias = Callable[..., int]
"""`main` of a command: takes a command line (None: that of the process), returns the exit status."""


def command_line(*, prog: str = "", selector: str = "", **lines: str) -> Callable[[Callable[..., None]], Main]:
    """Decorator: makes a function the `main` of a command.

    The class of its first argument, a dataclass, declares the options; the docstring of the class is the description in
    the help.

    Args:
      prog: default: `jaxzoo data-build` for a function in `jaxzoo.cli.data_build`.
      selector: option that names a config or a run, whose fields are flags, too. The function gets these flags, and
        --help if given, as its second argument.
      **lines: `interrupted` and `out_of_memory` of `run`.
    """

    def decorate(work: Callable[..., None]) -> Main:
        declared = next(iter(inspect.signature(work).parameters.values())).annotation
        name = prog or f"jaxzoo {work.__module__.rpartition('.')[2].replace('_', '-')}"

        def command(words: Sequence[str]) -> None:
            if not selector:
                work(parse_flags(declared, words, prog=name))
                return
            words, topic = split_help(words)
            asked = [word for word in words if word in HELP][:1]
            if asked and not topic:
                with contextlib.suppress(SystemExit):
                    parse_known(declared, asked, prog=name)
            try:
                options, flags = parse_known(declared, [word for word in words if word not in HELP], prog=name)
            except UsageError:
                if asked and not topic:
                    return  # a required option is absent, which the help has shown
                raise
            if topic and not getattr(options, selector):
                raise UsageError(f"--help {topic} describes fields of a config; name one by --{selector}")
            if not asked or getattr(options, selector):
                work(options, [*flags, *asked, *filter(None, [topic])])

        return lambda argv=None: run(command, argv, **lines)

    return decorate


def run(
    command: Callable[[Sequence[str]], None],
    argv: Sequence[str] | None = None,
    *,
    interrupted: str = "interrupted",
    out_of_memory: str = "out of memory",
) -> int:
    """Runs a command on a command line (None: that of the process) and returns the exit status.

    An error in the table of `_outcome` is one line on standard error (`interrupted` after Ctrl-C); any other is a
    defect and keeps its traceback.
    """
    for name in ("stdout", "stderr"):  # if closed, the next opened file would get its descriptor and the output
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 open to the end
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the last characters of a run must not end it
    quieten()
    try:
        _require_files()
        try:
            command(sys.argv[1:] if argv is None else argv)
        except SystemExit as stopped:  # after --help
            if stopped.code:
                raise
        sys.stdout.flush()
    except BaseException as error:
        outcome = _outcome(error, interrupted, out_of_memory)
        if outcome is None:
            if not _has_peers():
                raise
            traceback.print_exc()
        status, line = outcome or (1, "")
        if is_muted():
            from jaxzoo.parallel.agreement import is_shared

            line = "" if is_shared(error) else line
        if line:
            say(line)
        Screen(sys.stdout).write("")  # output that cannot be written must not fail again at the interpreter's exit
        if _has_peers():
            os._exit(status)  # a normal exit would let JAX wait for processes that have ended, and abort
        return status
    return 0


def _require_files() -> None:
    """Raises the limit of open files to `LEAST_FILES`; `ValueError` if it is not allowed to, as XLA would hang."""
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= hard < LEAST_FILES:  # -1: no limit
            raise ValueError(f"this process may open {hard} files, and must be allowed {LEAST_FILES}; see ulimit -n")
        if 0 <= soft < LEAST_FILES:
            resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_FILES, hard))


def _has_peers() -> bool:
    """Whether this process is one of several that are connected by `jax.distributed`."""
    return getattr(sys.modules.get("jax.distributed"), "is_initialized", bool)()


def say(line: str) -> None:
    """Prints a line on standard error."""
    Screen(sys.stderr).say(line)


def _outcome(error: BaseException, interrupted: str, out_of_memory: str) -> tuple[int, str] | None:
    """Exit status and line ("": none) for an error; None: a defect."""
    place = traceback.extract_tb(error.__traceback__)[-1].filename
    match error:
        case Failure():
            return 1, f"error: {_one_line(error)}"
        case BrokenPipeError():
            return 141, ""
        case ValueError() | OSError():
            return 2, f"error: {_one_line(error)}"
        case KeyboardInterrupt():
            return 130, interrupted
        case RuntimeError() if "home directory" in str(error):
            return 2, f"error: {_one_line(error)} A path with ~ needs HOME, or the name of a user; write it out"
        case RuntimeError() | AssertionError() if place.endswith("xla_bridge.py"):
            platforms = os.environ.get("JAX_PLATFORMS", "")
            return 2, f"error: JAX cannot start with JAX_PLATFORMS={platforms!r}. {_one_line(error)}".strip()
        case MemoryError():
            return 1, f"error: {out_of_memory}"
    of_device = getattr(sys.modules.get("jax.errors"), "JaxRuntimeError", ())  # (): JAX was never imported
    told = any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "Out of memory"))
    return (1, f"error: {out_of_memory}") if isinstance(error, of_device) and told else None


def _one_line(error: BaseException) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= 2 * HALF_LINE else f"{line[:HALF_LINE]} ... {line[-HALF_LINE:]}"


def quieten() -> None:
    """Silences the logs of libraries, whose errors arrive as exceptions."""
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _unraisablehook
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*persistent compilation cache")


def _unraisablehook(failed: Any) -> None:
    """Prints an unraisable exception, except those of Orbax's other readers and writers after one has failed."""
    code = getattr(failed.object, "cr_code", None)
    is_of_orbax = "orbax" in getattr(code, "co_filename", "")
    if not is_of_orbax and str(failed.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(failed)


def prepare_jax() -> None:
    """Enables JAX's persistent compilation cache, keeps freed memory on a CPU, and starts JAX."""
    from jaxzoo.utils.host_memory import keep_freed_memory

    _use_compilation_cache()
    keep_freed_memory()


def _use_compilation_cache() -> None:
    """`JAX_COMPILATION_CACHE_DIR` has precedence."""
    import jax
    from jax._src import compilation_cache

    if zstd := getattr(compilation_cache, "zstandard", None):  # XLA crashes with a damaged entry; zlib has a checksum
        compilation_cache.compress_executable = lambda data: zstd.ZstdCompressor(write_checksum=True).compress(data)
    if jax.config.jax_compilation_cache_dir:
        return
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(os.path.expanduser(home), "jaxzoo", "xla-checked")  # stays ~ where there is no home
    with contextlib.suppress(OSError):
        if directory.is_absolute():
            directory.mkdir(parents=True, exist_ok=True)
    if os.access(directory, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
