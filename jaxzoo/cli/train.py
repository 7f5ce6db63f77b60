"""`python -m jaxzoo.train --config FILE`: a config file, overrides by dotted flags, a run directory.

Exit statuses beside the runner's: 0 also where a signal has stopped the training after a checkpoint; 1: failed in the
middle, or another process of the run did, earlier checkpoints kept; 2: refused before anything was written.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.cli.config_file import MIXER_FLAG, load_config, mixer_names, normal_name
from jaxzoo.cli.flags import ArgumentParser, UsageError, override
from jaxzoo.cli.processes import Processes, add_options, part_of_run, read_options
from jaxzoo.cli.runner import Failure, run, use_compilation_cache
from jaxzoo.config_io import to_json
from jaxzoo.screen import Screen
from jaxzoo.train.run_dir import RunDirectory, default_run_dir

if TYPE_CHECKING:
    from jaxzoo.config import ExperimentConfig

PROGRAM = "python -m jaxzoo.train"

DESCRIPTION = """Trains a model of sequence mixers on a recall task or on text. A config file sets every
field; any field can be overridden by its dotted name, such as --model.d-model 128 or
--model.pattern.1.n-heads 4. Add --config FILE (and --model.mixer NAME) to this --help to see all fields
of that file (with that mixer), their meaning and value."""


@dataclasses.dataclass(frozen=True)
class TrainCommand:
    """The parsed command line."""

    config: "ExperimentConfig"
    """The file's config with the overrides."""
    config_file: Path
    """The file."""
    run_dir: Path
    """Where the run lives."""
    resume: bool
    """Continue the run there."""
    overwrite: bool
    """Replace the run there."""
    init_from: str
    """Source of the first parameters of a new run: `RUN`, `RUN:STEP`, `RUN:best` or a file; empty: random ones."""
    allow_oversize: bool
    """Try what is beyond the memory of the devices."""
    profile: range | None
    """Steps to trace."""
    print_model: bool
    """Describe the model and do nothing else."""
    processes: Processes
    """The processes of the run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(
        _train,
        argv,
        interrupted="interrupted before training began; nothing was written",
        out_of_memory="out of memory; try a smaller --train.batch-size, or more devices by --mesh.fsdp",
    )


def _train(argv: Sequence[str]) -> None:
    command = parse_command(argv)
    if command.print_model:
        from jaxzoo.models.describe import describe

        print(describe(command.config.model, command.config.model.max_length))
        return
    directory = RunDirectory(command.run_dir.absolute())
    with part_of_run(command.processes):
        _train_in(directory, command)


def _train_in(directory: RunDirectory, command: TrainCommand) -> None:
    from jaxzoo.distributed.agreement import is_leader, together

    with together(OSError, ValueError):
        directory.check(resume=command.resume, overwrite=command.overwrite)
        if command.resume:
            directory.check_same(to_json(command.config))
    use_compilation_cache()

    import jax

    from jaxzoo.train.experiment import TrainingError, run_experiment
    from jaxzoo.train.host_memory import keep_freed_memory, share_one_arena
    from jaxzoo.train.origin import CheckpointPlace

    init_from = CheckpointPlace.parse(command.init_from) if command.init_from else None
    if init_from and init_from.path.absolute() == directory.path:
        raise UsageError(f"--init-from {command.init_from} is the run that would be replaced; choose another --run-dir")
    share_one_arena()  # before JAX starts its devices, and their threads
    if jax.devices()[0].platform == "cpu":
        keep_freed_memory()
    try:
        run_experiment(
            command.config,
            directory,
            name=str(command.config_file),
            resume=command.resume,
            overwrite=command.overwrite,
            screen=Screen(sys.stdout if is_leader() else None),
            init_from=init_from,
            allow_oversize=command.allow_oversize,
            profile=command.profile,
        )
    except TrainingError as error:
        raise Failure(str(error), 1) from error


def parse_command(argv: Sequence[str]) -> TrainCommand:
    """Reads the command line and the config file that it names; prints help and exits with 0 where asked to.

    Raises:
      UsageError: a mistake in either.
    """
    options, flags = _options().parse_known_args(argv)
    if options.help:
        print(_options(mixers=mixer_names() if options.config else ()).format_help())
        if options.config is None:
            raise SystemExit(0)
    if options.config is None:
        raise UsageError("--config FILE is required, such as --config configs/mqar/based.py; see --help")
    if options.resume and options.init_from is not None:
        raise UsageError("--resume and --init-from exclude each other: a run that goes on has parameters of its own")
    if options.init_from == "":
        raise UsageError("--init-from must name a run, such as runs/mqar-based, or a step of it, runs/mqar-based:900")
    file = Path(options.config)
    config = override(
        load_config(file, name=options.name, mixer=options.mixer),
        [*flags, *(["--help"] if options.help else [])],
        prog=PROGRAM,
        others=[MIXER_FLAG, "--name"],
    )
    return TrainCommand(
        config=config,
        config_file=file,
        run_dir=Path(
            options.run_dir or default_run_dir(file.with_stem(options.name or file.stem), options.mixer)
        ).expanduser(),
        resume=options.resume,
        overwrite=options.overwrite,
        init_from=options.init_from or "",
        allow_oversize=options.allow_oversize,
        profile=_steps_to_profile(options.profile, config.train.steps),
        print_model=options.print_model,
        processes=read_options(options),
    )


def _steps_to_profile(text: str | None, n_steps: int) -> range | None:
    from jaxzoo.train.profiling import parse_steps

    return None if text is None else parse_steps(text, n_steps)


def _options(mixers: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The options beside the config's fields; the help tells the names of the mixers."""
    parser = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--config", metavar="FILE", help="Python file with `config`, a value or a function")
    parser.add_argument(
        "--name", type=normal_name, metavar="NAME", help="one of the configurations of a FILE with several"
    )
    names = ", ".join(mixers) or "with --config FILE, --help lists them"
    mixer = f"mixer of a FILE that leaves it open, such as configs/mqar/zoo.py: {names}"
    parser.add_argument(MIXER_FLAG, dest="mixer", metavar="NAME", help=mixer)
    parser.add_argument(
        "--run-dir", metavar="DIR", help="directory of the run; default: runs/<config or its name>[-<mixer>]"
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in the directory, bit for bit")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in the directory")
    init_from = (
        "begin a new run with the parameters alone of that checkpoint (STEP may be best), or of a .safetensors file"
    )
    parser.add_argument("--init-from", metavar="RUN[:STEP]", help=init_from)
    parser.add_argument("--allow-oversize", action="store_true", help="try what is beyond the memory of the devices")
    profile = "trace the steps from START up to, but not with, STOP, such as 10:13, for https://ui.perfetto.dev"
    parser.add_argument("--profile", metavar="START:STOP", help=profile)
    parser.add_argument("--print-model", action="store_true", help="describe the model and stop")
    add_options(parser)
    return parser
