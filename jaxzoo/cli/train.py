"""`python -m jaxzoo.train --config FILE`: a config file, overrides by dotted flags, a run directory.

Exit statuses, in addition to the runner's: 0 also where a signal has stopped the training after a checkpoint; 1: failed
in the middle, or another process of the run did, earlier checkpoints kept; 2: refused before anything was written.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from jaxzoo.cli.config_file import add_config_options, read_config
from jaxzoo.cli.flags import ArgumentParser, UsageError, positive
from jaxzoo.cli.runner import Main, prepare_jax, quieten, run, say
from jaxzoo.train.run_dir import default_run_dir
from jaxzoo.utils.screen import Screen, mute

PROGRAM = "python -m jaxzoo.train"

DESCRIPTION = """Trains a model of sequence mixers on a recall task or on text. A config file sets every
field; any field can be overridden by its dotted name, such as --model.d-model 128 or
--model.pattern.1.n-heads 4. Add --config FILE (and --model.mixer NAME) to this --help to see all fields
of that file (with that mixer), their meaning and value."""


def _train(argv: Sequence[str]) -> None:
    if any(word.partition("=")[0] in ("--coordinator", "--distributed") for word in argv):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else XLA logs what a lost process does to each thread
    options = parse_command(argv)
    if options.print_model:
        from jaxzoo.models.describe import describe

        print(describe(options.config.model, options.config.model.max_length))
        return
    with _part_of_run(options):
        prepare_jax()

        from jaxzoo.fitting import fit
        from jaxzoo.loading.origin import CheckpointPlace
        from jaxzoo.parallel.agreement import is_leader

        origin = CheckpointPlace.parse(options.init_from) if options.init_from else None
        if origin and origin.is_of(options.run_dir):
            rule = "is the run that would be replaced; choose another --run-dir"
            raise UsageError(f"--init-from {options.init_from} {rule}")
        fit(
            options.config,
            options.run_dir,
            name=str(options.config_file),
            resume=options.resume,
            overwrite=options.overwrite,
            init_from=origin,
            allow_oversize=options.allow_oversize,
            profile=options.profile,
            screen=Screen(sys.stdout if is_leader() else None),
        )


def parse_command(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line and the config file that it names; prints help and exits with 0 where asked to.

    Of the options, `config` is the file's configuration with the overrides, `config_file` the file, `run_dir` a path,
    and `profile` a range of steps or None. Raises `UsageError`.
    """
    options, flags = _options().parse_known_args(argv)
    if options.resume and options.init_from is not None:
        raise UsageError("--resume and --init-from exclude each other: a run that goes on has parameters of its own")
    if options.init_from == "":
        raise UsageError("--init-from must name a run, such as runs/mqar-based, or a step of it, runs/mqar-based:900")
    config = read_config(options, flags, prog=PROGRAM, make_parser=_options)
    if options.profile is not None:
        from jaxzoo.train.profiling import parse_steps

        options.profile = parse_steps(options.profile, config.train.steps)
    file = Path(options.config)
    default = default_run_dir(file.with_stem(options.name or file.stem), options.mixer, options.task)
    options.run_dir = Path(options.run_dir or default).expanduser()
    options.config, options.config_file = config, file
    _check_process_options(options)
    return options


def _options(mixers: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The options besides the config's fields; the help tells the names of the mixers."""
    parser = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, add_help=False, allow_abbrev=False)
    add_config_options(parser, mixers)
    add = parser.add_argument
    add("--run-dir", metavar="DIR", help="directory of the run; default: runs/<config or its name>[-<mixer>]")
    add("--resume", action="store_true", help="continue the run in the directory, bit for bit")
    add("--overwrite", action="store_true", help="replace the run in the directory")
    begin = "begin a new run with only the parameters of that checkpoint (STEP may be best), or of a .safetensors file"
    add("--init-from", metavar="RUN[:STEP]", help=begin)
    add("--allow-oversize", action="store_true", help="try a model that exceeds the memory of the devices")
    profile = "trace the steps from START to STOP (exclusive), such as 10:13, for https://ui.perfetto.dev"
    add("--profile", metavar="START:STOP", help=profile)
    add("--print-model", action="store_true", help="describe the model and stop")

    add = parser.add_argument_group("several processes, each started with the same command").add_argument
    add("--distributed", action="store_true", help="take all of this from Slurm, Open MPI, Kubernetes or a Cloud TPU")
    add("--coordinator", metavar="HOST:PORT", help="host of process 0, and a free port there")
    add("--processes", metavar="N", type=positive, help="number of processes")
    add("--process", metavar="I", type=int, help="number of this process, from 0")
    wait = "how long to wait until all processes have come; default: %(default)s"
    add("--wait", metavar="SECONDS", type=positive, default=300, help=wait)
    return parser


def _check_process_options(options: argparse.Namespace) -> None:
    """Raises `UsageError` where the options of several processes do not fit together."""
    flags = {"--coordinator": options.coordinator, "--processes": options.processes, "--process": options.process}
    given = [flag for flag, value in flags.items() if value is not None]
    if options.distributed and given:
        raise UsageError(f"--distributed and {given[0]} exclude each other: it learns from the cluster what that says")
    if not given:
        return
    if len(given) < 3:
        missing = next(flag for flag in flags if flag not in given)
        raise UsageError(f"{missing} is missing: --coordinator, --processes and --process belong together")
    if not 0 <= options.process < options.processes:
        rule = f"must be in [0, {options.processes - 1}], for --processes {options.processes}"
        raise UsageError(f"--process {options.process} {rule}")
    host, _, port = options.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--coordinator {options.coordinator!r} must be HOST:PORT, such as node-0:12321")


@contextlib.contextmanager
def _part_of_run(options: argparse.Namespace) -> Iterator[None]:
    """Inside the block this process is one of those of the run; only process 0 prints errors there."""
    if options.coordinator is None and not options.distributed:
        yield
        return
    from jaxzoo.parallel.agreement import is_leader
    from jaxzoo.parallel.joining import ProcessPlace, joined

    place = None
    if options.coordinator is not None:
        place = ProcessPlace(options.coordinator, options.processes, options.process)
    quieten()
    with joined(place, wait=options.wait, say=say):
        if not is_leader():
            mute()
        yield


main: Main = partial(
    run,
    _train,
    interrupted="interrupted before training began; nothing was written",
    out_of_memory="out of memory; try a smaller --train.batch-size, or more devices by --mesh.fsdp",
)
