"""Import of Python files named on a command line, and of their classes, with one-line errors."""

import contextlib
import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxzoo.cli import packaged
from jaxzoo.cli.flags import UsageError
from jaxzoo.config.checked import unknown
from jaxzoo.config.config_io import STORED_MODULE

MIXER_FLAG = "--model.mixer"
TASK_FLAG = "--task"
"""Options for the parameters `mixer` and `task` of a config file's function."""


def normal_name(text: str) -> str:
    """Normalizes a name of the command line: `RET-NET` is `ret_net`; `FILE.py:NAME` is unchanged."""
    return text if ":" in text else text.lower().replace("-", "_")


def import_file(file: Path, kind: packaged.Kind = "configs", *, what: str = "") -> ModuleType:
    """Imports a Python file. Raises `UsageError`.

    The module's name contains a hash of path and contents, so that a second import of an unchanged file returns the
    same classes. Its folder, and the folder around its package, are appended to `sys.path` for imports inside its
    functions.
    """
    what = what or f"{kind.removesuffix('s')} file"
    if not file.is_file():
        raise UsageError(f"{what} {file} {packaged.missing(file, kind)}")
    with failures_of(file, what):
        path = file.resolve()
        source = path.read_bytes()
        name = f"{path.stem}_{hashlib.sha256(bytes(path) + source).hexdigest()[:16]}"
        if name in sys.modules:
            return sys.modules[name]
        outside = path.parent
        while (outside / "__init__.py").is_file():
            outside = outside.parent
        for folder in (path.parent, outside):
            if str(folder) not in sys.path:
                sys.path.append(str(folder))
        module = sys.modules[name] = ModuleType(name)  # where dataclasses and type hints find it
        module.__file__ = str(path)
        setattr(module, STORED_MODULE, path.stem)
        try:
            exec(compile(source, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        return module


def import_files(files: Iterable[str | Path]) -> None:
    """Imports several config files.

    Raises:
      UsageError: one fails; or two define classes with the same stored name (module and class), or need different
        modules with the same name.
    """
    known: dict[tuple[str, str], Path] = {}
    folders: list[Path] = []
    for file in map(Path, files):
        for neighbour in file.parent.glob("*.py"):
            taken = Path(getattr(sys.modules.get(neighbour.stem), "__file__", None) or neighbour)
            if taken.parent in folders and taken != neighbour.resolve():
                clash = f"its module {neighbour.stem} would be {taken}"
                raise UsageError(f"--config {file}: {clash}; take one run at a time")
        module = import_file(file)
        folders.append(file.resolve().parent)
        for name, value in vars(module).items():
            if not isinstance(value, type) or value.__module__ != module.__name__:
                continue
            other = known.setdefault((file.stem, name), file)
            if other.resolve() != file.resolve():
                raise UsageError(
                    f"--config {other} and {file}: both define {file.stem}:{name}, and a run would get the class of "
                    "the last file; take one run at a time"
                )


def class_in_file(text: str, base: type, option: str) -> type:
    """Returns the subclass of `base` that `FILE:NAME` names; NAME may omit the suffix `Config`."""
    file, _, name = text.rpartition(":")
    module = import_file(Path(file), what=f"{option}: file")
    own = {key: value for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)}
    for found in (name, f"{name}Config"):
        if found in own and not inspect.isabstract(own[found]):
            return own[found]
    names = [key for key, value in own.items() if value.__module__ == module.__name__]
    hint = unknown("class", name, names) if names else "it defines none"
    raise UsageError(f"{option} {text}: {file} must define {name} or {name}Config, a {base.__name__}: {hint}")


def find_class(name: str, base: type, option: str, registered: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a registered class or function, or a class of an installed package (entry points) or a file.

    Raises:
      UsageError: the name is unknown (the message suggests the nearest one), or the file fails.
    """
    what = "mixer" if option == MIXER_FLAG else "task"
    if ":" in name:
        return class_in_file(name, base, option)
    normal = normal_name(name)
    installed = {point.name: point for point in entry_points(group=f"jaxzoo.{what}s")}
    if normal in registered:
        return registered[normal]
    if normal in installed:
        return installed[normal].load()
    yours = "; your own task is FILE.py:NAME" if what == "task" else ""
    raise UsageError(f"{option}: {unknown(what, normal, [*registered, *installed])}{yours}")


@contextlib.contextmanager
def failures_of(file: Path, what: str = "config file") -> Iterator[None]:
    """Context manager: turns any exception of a file's code into a `UsageError` with the line number."""
    try:
        yield
    except UsageError:
        raise
    except BaseException as error:
        path = str(file.resolve())
        last_line = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, SyntaxError) and error.filename == path:
            number = error.lineno
        else:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
            number = lines[-1] if lines else None
        raise UsageError(f"{what} {file}{f', line {number}' if number else ''}: {last_line}") from error
