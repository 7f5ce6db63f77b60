"""`python -m jaxzoo.train` from the first check to the last line, with its exit statuses.

0: trained, or stopped by a signal after a checkpoint; 1: failed in the middle, earlier checkpoints kept;
2: refused before anything was written; 130: interrupted before training began.
"""

import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from jaxzoo.config_io import to_json
from jaxzoo.models.describe import describe
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.cli import Command, parse_command
from jaxzoo.train.loop import NonFiniteError, Recorder, Start, StopSignals, begin, train
from jaxzoo.train.metrics import MetricsLog
from jaxzoo.train.progress import Progress, duration, table
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import Session


class Failure(Exception):
    """Ends the program with one line and a status."""

    def __init__(self, message: str, status: int):
        super().__init__(" ".join(message.split()))
        self.status = status


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    quieten()
    try:
        with _refusing():
            command = parse_command(sys.argv[1:] if argv is None else argv)
            if command.print_model:
                print(describe(command.config.model, command.config.model.max_length))
                return 0
            run = RunDirectory(command.run_dir.absolute())
            run.check(resume=command.resume, overwrite=command.overwrite)
            config = to_json(command.config)
            if command.resume:
                run.check_same(config)
            use_compilation_cache()
            session = Session(command.config)
        with jax.set_mesh(session.mesh):
            return _run(command, run, session)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return failure.status
    except KeyboardInterrupt:
        print("interrupted before training began; nothing was written", file=sys.stderr)
        return 130


def _run(command: Command, run: RunDirectory, session: Session) -> int:
    """Compiles, and only then touches the run directory."""
    _print_start(command, session)
    session.compile()
    print(f"compiled in {session.train_step.seconds:.1f} s", flush=True)
    try:
        start = _claim(command, run, session)
        with _failing(run):
            return _train(session, run, start)
    finally:
        run.release()


def _claim(command: Command, run: RunDirectory, session: Session) -> Start:
    """Where to begin; from here on the run directory is ours."""
    config = to_json(command.config)
    with _refusing():
        if command.resume:
            run.claim()
            with Checkpoints(run.checkpoints) as checkpoints:
                start = begin(session, checkpoints)
            run.write_config(config)
        else:
            start = begin(session, None)
            run.create(config, session.dataset.manifest())
    return start


def _train(session: Session, run: RunDirectory, start: Start) -> int:
    config, began = session.config.train, time.monotonic()
    progress = Progress(
        sys.stdout,
        steps=config.steps,
        start_step=start.step,
        batch_size=config.batch_size,
        log_every=config.log_every,
    )
    with StopSignals() as stop, MetricsLog(run.metrics, keep_until=start.step or -1) as log:
        record = Recorder(session, run, log, progress)
        if start.step:
            progress.say(f"resumed at step {start.step}")
        else:
            record.baselines()
        with Checkpoints(run.checkpoints, config.keep_checkpoints) as checkpoints:
            try:
                step = train(session, start, checkpoints, record, stop)
            except NonFiniteError as error:
                raise Failure(f"{error}; {_last_good(checkpoints, run)}", 1) from error
        record.draw()
        row = log.last("valid/loss")
    if stop.requested:
        progress.say(f"stopped at step {step}, saved; continue with the same command and --resume")
    elif row:
        progress.say(f"validation at step {row['step']}\n{table(row)}")
    seconds = time.monotonic() - began
    progress.say(f"{step} steps, {duration(seconds)} after compilation; metrics, curve, checkpoints: {run.path}")
    return 0


def _print_start(command: Command, session: Session) -> None:
    mesh = " ".join(f"{axis}={size}" for axis, size in session.mesh.shape.items())
    kind = session.mesh.devices.flat[0].device_kind
    print(
        f"{command.config_file}: {session.blueprint.n_params:,} parameters, "
        f"{session.mesh.size} x {kind} ({mesh}), run directory {command.run_dir}"
    )
    if session.dataset.summary:
        print(session.dataset.summary)
    sys.stdout.flush()


def _last_good(checkpoints: Checkpoints, run: RunDirectory) -> str:
    if checkpoints.newest is None:
        return "no checkpoint had been written; try a lower --optimizer.learning-rate"
    return f"the last good checkpoint is that of step {checkpoints.newest} in {run.checkpoints}"


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turns what the input or the disk refuses into one line and status 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise Failure(str(error), 2) from error


@contextlib.contextmanager
def _failing(run: RunDirectory) -> Iterator[None]:
    """Turns a disk that fails in mid-run into one line and status 1."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{error}; stopped, complete checkpoints are kept in {run.checkpoints}", 1) from error


def quieten() -> None:
    """Keeps libraries from spilling logs over our lines; what matters reaches us as an exception."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*persistent compilation cache")


def use_compilation_cache() -> None:
    """Lets a second start load what the first compiled; `JAX_COMPILATION_CACHE_DIR` has precedence."""
    if jax.config.jax_compilation_cache_dir:
        return
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(home).expanduser() / "jaxzoo" / "xla"
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
    if os.access(directory, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
