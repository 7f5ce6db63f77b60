"""Config files: Python files of the user's own, imported as modules of their own."""

import hashlib
import importlib.machinery
import importlib.util
import sys
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from jaxzoo.cli.flags import UsageError

if TYPE_CHECKING:
    from jaxzoo.config import ExperimentConfig


def load_config(file: Path) -> "ExperimentConfig":
    """Imports a Python file and takes its `config`: an `ExperimentConfig`, or a function that returns one.

    The file may define mixers of its own, or import them from a module that lies beside it.

    Raises:
      UsageError: the file is missing or fails (with its line), or gives no such thing.
    """
    if not file.is_file():
        raise UsageError(f"config file {file} does not exist")

    from jaxzoo.config import ExperimentConfig  # slow, and not in the block below: Ctrl-C would be a failing file there

    try:
        config = getattr(_import(file.resolve()), "config", None)
        config = config() if callable(config) else config
    except BaseException as error:  # whatever the user's file raises, SystemExit and KeyboardInterrupt included
        raise UsageError(f"config file {file}{_line_of(error, file)}: {_last_line(error)}") from error
    if not isinstance(config, ExperimentConfig):
        raise UsageError(f"config file {file} must define `config`, an ExperimentConfig or a function giving one")
    return config


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the file as it stands, and writes nothing beside it."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import(file: Path) -> ModuleType:
    """The file as a module: dataclasses and type hints find it in `sys.modules`.

    Its name is made of path and contents, so that a file which has not changed gives the same classes again. Its
    folder comes last in `sys.path` and stays there, for imports inside its functions.
    """
    name = f"{file.stem}_{hashlib.sha256(bytes(file) + file.read_bytes()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
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


def _line_of(error: BaseException, file: Path) -> str:
    path = str(file.resolve())
    if isinstance(error, SyntaxError) and error.filename == path:
        return f", line {error.lineno}" if error.lineno else ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f", line {frames[-1].lineno}" if frames else ""


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()
