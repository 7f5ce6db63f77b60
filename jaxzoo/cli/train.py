"""`jaxzoo train --config FILE`: trains a model.

Exit status 0 also after a signal and a checkpoint; 1: this process or another one of the run failed during training,
earlier checkpoints are kept; 2: refused before anything was written; others as in `runner.py`.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from jaxzoo.cli import packaged
from jaxzoo.cli.config_file import ConfigOptions, read_config
from jaxzoo.cli.flags import UsageError, flag
from jaxzoo.cli.runner import command_line, prepare_jax, quieten, say
from jaxzoo.cli.user_files import normal_name
from jaxzoo.config.checked import Checked, NonNegativeInt, PositiveInt
from jaxzoo.train.run_dir import default_run_dir
from jaxzoo.train.trackers import TrackerName
from jaxzoo.utils.screen import Screen, mute


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessOptions(Checked):
    """Options of a run of several processes, each started with the same command."""

    distributed: bool = False
    """Take coordinator, number and index of processes from Slurm, Open MPI, Kubernetes or a Cloud TPU."""
    coordinator: Annotated[str | None, flag("HOST:PORT")] = None
    """Host of process 0 and a free port on it."""
    processes: Annotated[PositiveInt | None, flag("N")] = None
    """Number of processes."""
    process: Annotated[NonNegativeInt | None, flag("I")] = None
    """Index of this process, from 0."""
    wait: Annotated[PositiveInt, flag("SECONDS")] = 300
    """How long to wait for all processes."""

    def __post_init__(self) -> None:
        flags = {"--coordinator": self.coordinator, "--processes": self.processes, "--process": self.process}
        given = [name for name, value in flags.items() if value is not None]
        if self.distributed and given:
            rule = "it gets these values from the cluster"
            raise UsageError(f"--distributed and {given[0]} exclude each other: {rule}")
        if self.coordinator is None or self.processes is None or self.process is None:
            if given:
                missing = next(name for name in flags if name not in given)
                raise UsageError(f"{missing} is missing: --coordinator, --processes and --process belong together")
            return
        if self.process >= self.processes:
            rule = f"must be in [0, {self.processes - 1}], for --processes {self.processes}"
            raise UsageError(f"--process {self.process} {rule}")
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"--coordinator {self.coordinator!r} must be HOST:PORT, such as node-0:12321")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainCommand(ProcessOptions, ConfigOptions):
    """Trains a model of sequence mixers on a recall task or on text. A config file sets every field; any field can be
    overridden by its dotted name, such as --model.d-model 128 or --model.pattern.1.n-heads 4. Add --config FILE (and
    --model.mixer NAME) to this --help to see all fields of that file (with that mixer), their meaning and value."""

    run_dir: Annotated[Path | None, flag("DIR")] = None
    """Directory of the run; default: runs/<config or its name>[-<mixer>]."""
    resume: bool = False
    """Continue the run in the directory, bit for bit."""
    overwrite: bool = False
    """Replace the run in the directory."""
    init_from: Annotated[str | None, flag("RUN[:STEP]")] = None
    """Begin a new run with only the parameters of that checkpoint (STEP may be best), or of a .safetensors file."""
    allow_oversize: bool = False
    """Try a model that seems too large for the memory of the devices."""
    profile: Annotated[str | None, flag("START:STOP")] = None
    """Trace the steps from START to STOP (exclusive), such as 10:13, for https://ui.perfetto.dev."""
    tracker: TrackerName | None = None
    """Send the metrics to wandb or trackio, too (pip install wandb)."""
    print_model: bool = False
    """Describe the model and stop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.init_from is not None:
            rule = "a resumed run has its own parameters"
            raise UsageError(f"--resume and --init-from exclude each other: {rule}")
        if self.init_from == "":
            example = "such as runs/mqar-based, or a step of it, runs/mqar-based:900"
            raise UsageError(f"--init-from must name a run, {example}")

    @property
    def place(self) -> Path:
        """Directory of the run."""
        if self.run_dir is not None:
            return self.run_dir.expanduser()
        file = Path(packaged.find(self.config or "", "configs"))
        if self.name is not None:
            file = file.with_stem(normal_name(self.name))
        return default_run_dir(file, self.mixer, self.task)


@command_line(
    selector="config",
    interrupted="interrupted before training began; nothing was written",
    out_of_memory="out of memory; try a smaller --train.batch-size, or more devices by --mesh.fsdp",
)
def main(command: TrainCommand, flags: Sequence[str]) -> None:
    if command.distributed or command.coordinator:
        os.environ.setdefault(
            "TF_CPP_MIN_LOG_LEVEL", "3"
        )  # otherwise XLA logs all threads' errors after a lost process
    config = read_config(command, flags, prog="jaxzoo train")
    profile = None
    if command.profile is not None:
        from jaxzoo.train.profiling import parse_steps

        profile = parse_steps(command.profile, config.train.steps)
    if command.print_model:
        from jaxzoo.models.describe import describe

        print(describe(config.model, config.model.max_length))
        return
    with _part_of_run(command):
        prepare_jax()

        from jaxzoo.fitting import fit
        from jaxzoo.loading.origin import CheckpointPlace
        from jaxzoo.parallel.agreement import is_leader

        origin = CheckpointPlace.parse(command.init_from) if command.init_from else None
        if origin and origin.is_of(command.place):
            rule = "is the run that would be replaced; choose another --run-dir"
            raise UsageError(f"--init-from {command.init_from} {rule}")
        fit(
            config,
            command.place,
            name=str(command.config),
            resume=command.resume,
            overwrite=command.overwrite,
            init_from=origin,
            allow_oversize=command.allow_oversize,
            profile=profile,
            tracker=command.tracker,
            screen=Screen(sys.stdout if is_leader() else None),
        )


@contextlib.contextmanager
def _part_of_run(options: ProcessOptions) -> Iterator[None]:
    """Context manager: joins this process to the multi-process run; only process 0 prints errors inside."""
    if options.coordinator is None and not options.distributed:
        yield
        return
    from jaxzoo.parallel.agreement import is_leader
    from jaxzoo.parallel.joining import ProcessPlace, joined

    place = None
    if options.coordinator and options.processes is not None and options.process is not None:
        place = ProcessPlace(options.coordinator, options.processes, options.process)
    quieten()
    with joined(place, wait=options.wait, say=say):
        if not is_leader():
            mute()
        yield
