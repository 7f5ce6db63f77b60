"""Config files, and fields replaced on the command line."""

import dataclasses
import inspect
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jaxzoo.cli import packaged
from jaxzoo.cli.flags import HELP, UsageError, flag, options_of, override
from jaxzoo.cli.runner import say
from jaxzoo.cli.user_files import MIXER_FLAG, TASK_FLAG, failures_of, find_class, import_file, normal_name
from jaxzoo.config.checked import Checked, unknown

if TYPE_CHECKING:
    from jaxzoo.mixers import MixerConfig
    from jaxzoo.tasks.base import TaskConfig
    from jaxzoo.train.config import RunConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigOptions(Checked):
    """Options that choose a configuration."""

    config: Annotated[str | None, flag("FILE")] = None
    """Python file that defines `config`, a value or a function; or a packaged one by name, such as mqar/based."""
    name: Annotated[str | None, flag("NAME")] = None
    """One configuration of a FILE with several."""
    mixer: Annotated[str | None, flag("NAME", "model.mixer")] = None
    """Mixer, if FILE takes one: a name that --config FILE --help lists, or your_file.py:YourMixer."""
    task: Annotated[str | None, flag("NAME")] = None
    """Task, if FILE takes one: a name that jaxzoo tasks --help lists, or your_file.py:YourTask."""


def read_config(options: ConfigOptions, flags: Sequence[str], *, prog: str) -> "RunConfig":
    """Returns the configuration that the options choose, with fields replaced by dotted flags.

    With --help among the flags it prints the help of all fields and exits with 0. Raises `UsageError`.
    """
    if options.config is None:
        raise UsageError("--config FILE is required, such as --config configs/mqar/based.py; see --help")
    if flags and flags[-1] in HELP:
        from jaxzoo.mixers import MIXERS

        names = f"mixers: {', '.join(sorted(MIXERS))}"
        print(f"\n{textwrap.fill(names, shutil.get_terminal_size().columns)}")
    file = Path(packaged.find(options.config, "configs"))
    config = load_config(file, name=options.name, mixer=options.mixer, task=options.task)
    return override(config, flags, prog=prog, others=options_of(type(options)).values())


def load_config(
    file: Path, *, name: str | None = None, mixer: str | None = None, task: str | None = None
) -> "RunConfig":
    """Imports a Python file and returns its `config`, a `RunConfig` or a function that returns one.

    The parameters `mixer: MixerConfig = ...` and `task: TaskConfig = ...` of a function are set from the command line.
    A file with several configurations has them in a dict `configs`, of which `name` is a key. For the directory of a
    run it returns the config of the run.

    Raises:
      UsageError: the file is absent or fails, or an unknown configuration, parameter, mixer or task.
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

    from jaxzoo.train.config import RunConfig  # first: Ctrl-C in this import would look like a failure of the file

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
    if not isinstance(config, RunConfig):
        raise UsageError(
            f"config file {file} must define `config`, a RunConfig or a function that returns one, or several "
            "in a dict `configs`"
        )
    return config


def _choose(file: Path, config: Any, configs: Mapping[str, Any], name: str | None) -> Any:
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
        raise UsageError(f"--name: config file {file} has {' and '.join(found)}, which are the same name; rename one")
    return configs[found[0]]


def _named(option: str, name: str) -> "MixerConfig | TaskConfig":
    """Returns the mixer or task of this name with its default fields."""
    from jaxzoo.mixers import MIXERS, MixerConfig
    from jaxzoo.mixers.names import resolve_alias
    from jaxzoo.tasks.base import TaskConfig
    from jaxzoo.tasks.demos import DEMOS

    if option == MIXER_FLAG and (found := resolve_alias(name)) != name:
        say(f"mixer: {found} ({name})")
        name = found
    tasks = {key: demo.full_size for key, demo in DEMOS.items()}
    base, registered = (MixerConfig, MIXERS) if option == MIXER_FLAG else (TaskConfig, tasks)
    with failures_of(Path(name.rpartition(":")[0]), f"{option}: file"):
        return find_class(name, base, option, registered)()
