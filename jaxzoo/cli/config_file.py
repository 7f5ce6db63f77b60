"""Config files: Python files of the user that define a configuration, and what the command line replaces in it."""

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxzoo.cli import packaged
from jaxzoo.cli.flags import UsageError, override
from jaxzoo.cli.user_files import MIXER_FLAG, TASK_FLAG, failures_of, find_class, import_file, normal_name
from jaxzoo.config.checked import unknown

if TYPE_CHECKING:
    from jaxzoo.mixers import MixerConfig
    from jaxzoo.tasks.base import TaskConfig
    from jaxzoo.train.config import ExperimentConfig


def add_config_options(parser: argparse.ArgumentParser, mixers: Sequence[str] = ()) -> None:
    """Adds the options that choose a configuration, and --help, to those of a command."""
    parser.add_argument("-h", "--help", action="store_true", help="show this help; with --config, all fields too")
    add = parser.add_argument
    config = "Python file that defines `config`, a value or a function; or a packaged one by name, such as mqar/based"
    add("--config", metavar="FILE", type=partial(packaged.find, kind="configs"), help=config)
    add("--name", type=normal_name, metavar="NAME", help="one configuration of a FILE with several")
    names = ", ".join(mixers) or "with --config FILE, --help lists them"
    mixer = f"mixer of a FILE that leaves it open, such as configs/mqar/zoo.py: your_file.py:YourMixer, or {names}"
    add(MIXER_FLAG, dest="mixer", metavar="NAME", help=mixer)
    task = "task of a FILE that leaves it open, such as configs/any_task.py: your_file.py:YourTask, or a name that "
    add(TASK_FLAG, metavar="NAME", help=task + "python -m jaxzoo.tasks --help lists")


def read_config(
    options: argparse.Namespace,
    flags: Sequence[str],
    *,
    prog: str,
    make_parser: Callable[[Sequence[str]], argparse.ArgumentParser],
) -> "ExperimentConfig":
    """The configuration that the options of `add_config_options` choose, with fields replaced by dotted flags.

    Prints help, that of `make_parser` with the names of mixers, and exits with 0 where asked to. Raises `UsageError`.
    """
    if options.help:
        if options.config is None:
            print(make_parser(()).format_help())
            raise SystemExit(0)
        from jaxzoo.mixers import MIXERS  # which imports JAX

        print(make_parser(sorted(MIXERS)).format_help())
    if options.config is None:
        raise UsageError("--config FILE is required, such as --config configs/mqar/based.py; see --help")
    config = load_config(Path(options.config), name=options.name, mixer=options.mixer, task=options.task)
    others = [f"--{name.replace('_', '-')}" for name in vars(options) if name != "mixer"]
    return override(config, [*flags, "--help"] if options.help else flags, prog=prog, others=[MIXER_FLAG, *others])


def load_config(
    file: Path, *, name: str | None = None, mixer: str | None = None, task: str | None = None
) -> "ExperimentConfig":
    """Imports a Python file and takes its `config`: an `ExperimentConfig`, or a function that returns one.

    The file may define mixers of its own, or import them from a module next to it. A function with a parameter
    `mixer: MixerConfig = ...` leaves the choice of the mixer to the command line, and `task: TaskConfig = ...` that of
    the task. A file may define several configurations instead, as a dict `configs`.

    Args:
      file: the Python file; or the directory of a run, whose config is taken, and leaves nothing to choose.
      name: key of `configs`, as `normal_name` makes of both; None where the file has a `config`.
      mixer, task: name of what the function gets, with the defaults of its class; None: the function's own default.

    Raises:
      UsageError: the file is missing or fails (with its line), or defines no configuration; no configuration, mixer or
        task has this name (with the nearest one), or the file leaves no such choice.
    """
    if file.is_dir():
        for option, given in (("--name", name), (MIXER_FLAG, mixer), (TASK_FLAG, task)):
            if given is not None:
                raise UsageError(f"{option} {given}: {file} is the directory of a run, which leaves no choice")
        from jaxzoo.loading.trained import find_run, read_experiment

        run = find_run(file, "--config")
        return read_experiment(run.read_config(), run.config)
    if not file.is_file():
        raise UsageError(f"config file {file} {packaged.missing(file, 'configs')}")

    from jaxzoo.train.config import (
        ExperimentConfig,  # not by the file's import, where Ctrl-C would be a failure of the file
    )

    module = import_file(file)
    config = _choose(file, getattr(module, "config", None), getattr(module, "configs", {}), name)
    open_choices = inspect.signature(config).parameters if callable(config) else {}
    chosen: dict[str, Any] = {}
    for what, option, wanted, example in (
        ("mixer", MIXER_FLAG, mixer, "configs/mqar/zoo.py"),
        ("task", TASK_FLAG, task, "configs/any_task.py"),
    ):
        if wanted is not None and what not in open_choices:
            raise UsageError(
                f"{option}: config file {file} leaves no {what} open: its `config` must be a function with a parameter "
                f"`{what}`, as in {example}"
            )
        if wanted is not None:
            chosen[what] = _named(option, wanted)
    with failures_of(file):
        config = config(**chosen) if callable(config) else config
    if not isinstance(config, ExperimentConfig):
        raise UsageError(
            f"config file {file} must define `config`, an ExperimentConfig or a function that returns one, or several "
            "in a dict `configs`"
        )
    return config


def _choose(file: Path, config: Any, configs: Mapping[str, Any], name: str | None) -> Any:
    """The configuration that `--name` chooses, or the only one."""
    if not isinstance(configs, Mapping) or not all(isinstance(key, str) for key in configs):
        raise UsageError(f"config file {file}: `configs` must be a dict of configurations by name")
    if name is None and configs:
        raise UsageError(f"config file {file} has several configurations; choose one by --name: {', '.join(configs)}")
    if name is None:
        return config
    if not configs:
        raise UsageError(f"--name {name}: config file {file} has one configuration, without a name")
    found = [key for key in configs if normal_name(key) == normal_name(name)]
    if not found:
        raise UsageError(f"--name: {file}: {unknown('configuration', name, configs)}")
    if len(found) > 1:
        raise UsageError(f"--name: config file {file} has {' and '.join(found)}, which are one name; rename one")
    return configs[found[0]]


def _named(option: str, name: str) -> "MixerConfig | TaskConfig":
    """The mixer of `--model.mixer`, or the task of `--task`, with its defaults."""
    from jaxzoo.mixers import MIXERS, MixerConfig
    from jaxzoo.tasks.base import TaskConfig
    from jaxzoo.tasks.demos import DEMOS

    tasks = {key: demo.full_size for key, demo in DEMOS.items()}
    base, registered = (MixerConfig, MIXERS) if option == MIXER_FLAG else (TaskConfig, tasks)
    with failures_of(Path(name.rpartition(":")[0]), f"{option}: file"):
        return find_class(name, base, option, registered)()
