"""Config files: Python files of the user's own, imported as modules of their own."""

import ast
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from jaxzoo.cli.flags import UsageError
from jaxzoo.config_io import nearest

if TYPE_CHECKING:
    from jaxzoo.config import ExperimentConfig
    from jaxzoo.mixers import MixerConfig
    from jaxzoo.sweep import Experiment

MIXER_FLAG = "--model.mixer"
"""Chooses the mixer of a file whose `config` is a function with a parameter `mixer`."""


def load_config(file: Path, *, mixer: str | None = None) -> "ExperimentConfig":
    """Imports a Python file and takes its `config`: an `ExperimentConfig`, or a function that returns one.

    The file may define mixers of its own, or import them from a module that lies beside it. A function with a
    parameter `mixer: MixerConfig = ...` leaves it to the command line which mixer goes where the function puts it.

    Args:
      file: the Python file.
      mixer: name of the mixer that such a function gets, with its class's defaults; None: the function's own default.

    Raises:
      UsageError: the file is missing or fails (with its line), or gives no such thing; no mixer has this name (with
        the nearest one), or the file leaves none open.
    """
    if not file.is_file():
        raise UsageError(f"config file {file} does not exist")

    from jaxzoo.config import ExperimentConfig  # slow, and not in the block below: Ctrl-C would be a failing file there

    with _failures_of(file):
        config = getattr(_import(file.resolve()), "config", None)
        leaves_open = callable(config) and "mixer" in inspect.signature(config).parameters
    if mixer is not None and not leaves_open:
        raise UsageError(
            f"{MIXER_FLAG}: config file {file} leaves no mixer open: its `config` must be a function with a parameter "
            "`mixer`, as in configs/mqar/zoo.py"
        )
    chosen: dict[str, Any] = {} if mixer is None else {"mixer": _mixer_named(mixer)}
    with _failures_of(file):
        config = config(**chosen) if callable(config) else config
    if not isinstance(config, ExperimentConfig):
        raise UsageError(f"config file {file} must define `config`, an ExperimentConfig or a function giving one")
    return config


def load_experiment(file: Path) -> "Experiment":
    """Imports a Python file and takes its `experiment`.

    Raises:
      UsageError: the file is missing or fails (with its line), or gives no such thing.
    """
    if not file.is_file():
        raise UsageError(f"experiment file {file} does not exist")

    from jaxzoo.sweep import Experiment

    with _failures_of(file, "experiment file"):
        experiment = getattr(_import(file.resolve()), "experiment", None)
    if not isinstance(experiment, Experiment):
        raise UsageError(f"experiment file {file} must define `experiment`, an Experiment")
    return experiment


def mixer_names() -> list[str]:
    """What `MIXER_FLAG` takes: the registered mixers, sorted; read off the source, since to import it is to wait for
    JAX."""
    source = (Path(__file__).parents[1] / "mixers" / "__init__.py").read_text()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict):
            return sorted(str(key.value) for key in statement.value.keys if isinstance(key, ast.Constant))
    raise LookupError("jaxzoo/mixers/__init__.py has no dict of mixers")


def _mixer_named(name: str) -> "MixerConfig":
    from jaxzoo.mixers import MIXERS

    registered = name.lower().replace("-", "_")
    if registered not in MIXERS:
        hint = nearest(registered, MIXERS) or f"; there are {', '.join(sorted(MIXERS))}"
        raise UsageError(f"{MIXER_FLAG}: unknown mixer {name!r}{hint}")
    return MIXERS[registered]()


@contextlib.contextmanager
def _failures_of(file: Path, what: str = "config file") -> Iterator[None]:
    """One line for whatever the user's file raises, SystemExit and KeyboardInterrupt included."""
    try:
        yield
    except BaseException as error:
        raise UsageError(f"{what} {file}{_line_of(error, file)}: {_last_line(error)}") from error


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the file as it stands, and writes nothing beside it."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import(file: Path) -> ModuleType:
    """The file as a module: dataclasses and type hints find it in `sys.modules`.

    Its name is made of path and contents, so that a file which has not changed gives the same classes again. Its
    folder comes last in `sys.path` and stays there, for imports inside its functions; where that is a package, what the
    package lies in too.
    """
    name = f"{file.stem}_{hashlib.sha256(bytes(file) + file.read_bytes()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    for folder in (file.parent, _outside_packages(file.parent)):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(name, file, loader=_Loader(name, str(file)))
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _outside_packages(folder: Path) -> Path:
    """The nearest folder that is no package."""
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _line_of(error: BaseException, file: Path) -> str:
    path = str(file.resolve())
    if isinstance(error, SyntaxError) and error.filename == path:
        return f", line {error.lineno}" if error.lineno else ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f", line {frames[-1].lineno}" if frames else ""


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()
