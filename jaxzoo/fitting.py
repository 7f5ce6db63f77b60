"""One experiment: from its config to a run directory with metrics, checkpoints and a picture."""

import contextlib
import sys
import time
from collections.abc import Iterator

import jax

from jaxzoo.config.config_io import to_json
from jaxzoo.evals.validation import Validation
from jaxzoo.loading.origin import CheckpointPlace, Origin, read_origin
from jaxzoo.parallel.agreement import AgreedStop, StopSignals, is_leader, together
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.checks import check_adapters, check_kernels
from jaxzoo.train.config import ExperimentConfig
from jaxzoo.train.loop import NonFiniteError, TrainingRun
from jaxzoo.train.memory import check_compiled
from jaxzoo.train.profiling import check_ahead, profiler
from jaxzoo.train.progress import Progress, duration, table
from jaxzoo.train.restore import UnusableError
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import Session
from jaxzoo.train.speed import Speed, step_work
from jaxzoo.train.start import ResumePoint, begin
from jaxzoo.utils.screen import Failure, Screen, warn


def run_experiment(
    config: ExperimentConfig,
    run: RunDirectory,
    *,
    name: str,
    resume: bool,
    overwrite: bool = False,
    init_from: CheckpointPlace | None = None,
    allow_oversize: bool = False,
    profile: range | None = None,
) -> None:
    """Trains to the end, or until a signal comes; compiles, and only then touches the run directory. Prints its course.

    Every process of a run calls it; process 0 alone writes, but for the arrays of checkpoints.

    Args:
      run: where it lives; checked by its `check` and `check_same`.
      name: of the experiment, in the first line.
      resume: whether to go on from the newest checkpoint that can be used.
      init_from: the checkpoint or file whose parameters a new run begins with; None: random ones.
      allow_oversize: whether to try what is beyond the memory of the devices.
      profile: steps that are traced; None: none.

    Raises:
      ValueError: model, data, mesh or checkpoint do not fit; nothing was written.
      OSError: the same of what could not be read, or written.
      Failure: a disk or the numbers failed in the middle, or no checkpoint can be used.
    """
    screen = Screen(sys.stdout if is_leader() else None)
    check_kernels(config.train)
    if not resume:
        check_adapters(config.train, begins_with=init_from)
    with together(OSError, ValueError):
        session = Session(config, limited=not allow_oversize)
    with jax.set_mesh(session.mesh):
        _print_start(session, name, run, screen)
        origin = None if init_from is None else read_origin(init_from, session)
        with _no_refusals("the training step did not compile"):
            step = session.compile()
        if not allow_oversize:
            check_compiled(step, session.mesh)
        screen.say(f"compiled in {session.train_step.seconds:.1f} s")
        try:
            start = _resumed(session, run, profile) if resume else _new(session, run, origin, overwrite=overwrite)
            if origin is not None:
                screen.say(f"begins with the parameters of {origin}")
            try:
                with _no_refusals("training failed"):
                    _train(session, run, start, screen, profile)
            except OSError as error:
                raise Failure(f"{error}; stopped, complete checkpoints are kept in {run.checkpoints}") from error
        finally:
            run.release()


def _new(session: Session, run: RunDirectory, origin: Origin | None, *, overwrite: bool) -> ResumePoint:
    """Claims the run directory, empties it, and gives the start of the run."""
    start = begin(session, None, variables=origin and origin.variables)
    config, note = to_json(session.config), origin and origin.note
    with together(OSError, ValueError):
        if is_leader():
            run.create(config, session.dataset.manifest(), note, keep=not overwrite)
    return start


def _resumed(session: Session, run: RunDirectory, profile: range | None) -> ResumePoint:
    """Claims the run directory and gives the start of the run at its newest checkpoint."""
    with together(OSError, ValueError):
        if is_leader():
            run.claim()
    checkpoints = Checkpoints(run.checkpoints, record=run.newest_checkpoint)
    lacks_origin = checkpoints.newest is None and run.origin.exists()
    refusal = (
        f"{run.path} was stopped before it had saved the parameters that it begins with, which {run.origin.name} "
        "names; start it again with --init-from and --overwrite"
    )
    try:
        start = begin(session, checkpoints)
    except UnusableError as error:
        raise ValueError(
            f"{error}; nothing was changed: put a copy of one back, start again with --overwrite, or choose another "
            "place with --run-dir"
        ) from None
    except ValueError as error:  # adapters, which need those parameters
        raise (ValueError(refusal) if lacks_origin else error) from None
    if lacks_origin:
        raise ValueError(refusal)
    check_ahead(profile, start.step)
    if checkpoints.newest is None:
        warn(f"{run.path} has no checkpoint yet; training begins again at step 0")
    checkpoints.begin_at(None if checkpoints.newest is None else start.step)
    with together(OSError):
        if is_leader():
            run.write_config(to_json(session.config))
    return start


def _train(session: Session, run: RunDirectory, start: ResumePoint, screen: Screen, profile: range | None) -> None:
    config, began = session.config.train, time.monotonic()
    speed = Speed(step_work(session), session.mesh.local_devices, start.step)
    progress = Progress(screen, steps=config.steps, speed=speed, log_every=config.log_every)
    traced = profile if is_leader() else None
    with StopSignals() as signals, profiler(traced, run.profile, progress.say, speed.pause) as around:
        stop = AgreedStop(signals, session.mesh)
        with TrainingRun(session, run, start, stop, progress.show, Validation(session).evaluate, speed=speed) as course:
            line = f"resumed at step {start.step}" if start.step else course.baselines()
            if line:
                progress.say(line)
            try:
                course.train(around)
            except NonFiniteError as error:
                raise Failure(f"{error}; {_last_saved(course.checkpoints, run)}") from error
        course.draw()
    row = course.log.last("valid/loss")
    if stop.requested:
        progress.say(f"stopped at step {course.step}, saved; continue with the same command and --resume")
    elif row:
        progress.say(f"validation at step {row['step']}\n{table(row)}")
    seconds = time.monotonic() - began
    progress.say(f"{course.step} steps, {duration(seconds)} after compilation; metrics, curve, checkpoints: {run.path}")


def _print_start(session: Session, name: str, run: RunDirectory, screen: Screen) -> None:
    mesh = " ".join(f"{axis}={size}" for axis, size in session.mesh.shape.items())
    kind = session.mesh.devices.flat[0].device_kind
    what = "parameters of adapters" if session.config.train.lora_rank else "parameters"
    screen.say(
        f"{name}: {session.blueprint.n_params:,} {what}, "
        f"{session.mesh.size} x {kind} ({mesh}), run directory {run.path}"
    )
    if session.dataset.summary:
        screen.say(session.dataset.summary)


def _last_saved(checkpoints: Checkpoints, run: RunDirectory) -> str:
    with contextlib.suppress(OSError):
        checkpoints.wait()
    remedy = "begin a run with a lower --optimizer.learning-rate"
    if checkpoints.newest is None:
        return f"no checkpoint had been written; {remedy}"
    return (
        f"the newest checkpoint that was saved is that of step {checkpoints.newest} in {run.checkpoints}; {remedy}, "
        f"from there with --init-from {run.path}:{checkpoints.newest}"
    )


@contextlib.contextmanager
def _no_refusals(what: str) -> Iterator[None]:
    """A ValueError in the block refuses no input: it is a defect, perhaps of a user's mixer, with a traceback."""
    try:
        yield
    except ValueError as error:
        raise RuntimeError(what) from error
