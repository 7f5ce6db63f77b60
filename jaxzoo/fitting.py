"""`jaxzoo.fit`: trains a model from a config, with or without a run directory."""

import contextlib
import importlib.util
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxzoo.config.config_io import to_json
from jaxzoo.evals.validation import Validation, metrics_table
from jaxzoo.loading.origin import CheckpointPlace, Origin, read_origin
from jaxzoo.models.adapters import AdaptedBlueprint
from jaxzoo.models.blueprint import Blueprint, Variables
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.parallel.agreement import AgreedStop, StopSignals, is_leader, is_one_of_many, together
from jaxzoo.train.checkpoint import Checkpoints, UnusableError
from jaxzoo.train.checks import check_adapters, check_kernels, check_same_everywhere, code_digest
from jaxzoo.train.config import RunConfig
from jaxzoo.train.hooks import Progress, RunFiles, RunHooks, open_files
from jaxzoo.train.loop import SingleRun, TrainingRun, run_loop
from jaxzoo.train.memory import check_compiled
from jaxzoo.train.metrics import MetricsLog, Row
from jaxzoo.train.profiling import TracedUpdate, check_ahead
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import ResumePoint, Session
from jaxzoo.train.speed import Speed, step_work
from jaxzoo.train.trackers import TrackerName, open_tracker
from jaxzoo.utils.checksums import json_sha256
from jaxzoo.utils.screen import Failure, Screen, warn
from jaxzoo.utils.text_table import duration

SILENT = Screen(None)


class FittedRun(NamedTuple):
    """A run after training."""

    blueprint: Blueprint | AdaptedBlueprint
    variables: Variables
    """Variables after the last update, on the devices of the mesh."""
    config: RunConfig
    step: int
    """Number of updates."""
    metrics: Sequence[Row]
    """Rows of metrics.jsonl."""
    run_dir: Path | None
    """Run directory; None: nothing was written."""

    @property
    def model(self) -> LanguageModel:
        """The trained model; adapters are merged."""
        return self.blueprint.model(self.variables)


def fit(
    config: RunConfig,
    run_dir: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    init_from: CheckpointPlace | str | None = None,
    allow_oversize: bool = False,
    profile: range | None = None,
    tracker: TrackerName | None = None,
    name: str = "experiment",
    screen: Screen = SILENT,
) -> FittedRun:
    """Trains until the last step or a signal. The run directory is not touched before the step is compiled.

    Every process of a run calls it; only process 0 writes, except for the arrays of checkpoints.

    Args:
      run_dir: run directory; None: nothing is written.
      resume: continues from the newest valid checkpoint.
      overwrite: replaces a run in the directory.
      init_from: checkpoint or file with the first parameters, such as `runs/mqar-based:900`; None: random ones.
      allow_oversize: skips the check of the devices' memory.
      profile: steps to trace.
      tracker: "wandb" or "trackio", which gets the metrics too.
      name: name of the config in the first line of output.
      screen: where progress is printed.

    Raises:
      ValueError: model, data, mesh, directory or checkpoint do not fit; nothing was written.
      OSError: a file cannot be read or written.
      Failure: writing failed during training, numbers are not finite, or no checkpoint is valid.
    """
    run = None if run_dir is None else RunDirectory(Path(run_dir).expanduser().absolute())
    place = CheckpointPlace.parse(init_from) if isinstance(init_from, str) else init_from
    if is_one_of_many():
        options = {"resume": resume, "overwrite": overwrite, "init_from": str(place), "run_dir": str(run and run.path)}
        options["allow_oversize"] = allow_oversize
        check_same_everywhere({"config": to_json(config), "code": code_digest(), "options": options})
    _check_directory(run, config, resume=resume, overwrite=overwrite, profile=profile, tracker=tracker)
    check_kernels(config.train)
    if not resume:
        check_adapters(config.train, begins_with=place)
    with together(OSError, ValueError):
        session = Session(config, limited=not allow_oversize)
    if is_one_of_many():
        manifest: Any = session.dataset.manifest() or {}
        check_same_everywhere({"data": {name: json_sha256(value) for name, value in manifest.items()}})
    with jax.set_mesh(session.mesh):
        _print_start(session, name, run, screen)
        origin = None if place is None else read_origin(place, session)
        with _no_refusals("the training step did not compile"):
            step = session.compile()
        if not allow_oversize:
            check_compiled(step, session.mesh)
        screen.say(f"compiled in {session.train_step.seconds:.1f} s")
        try:
            start = _resumed(session, run, profile) if resume else _new(session, run, origin, overwrite=overwrite)
            if origin is not None:
                screen.say(f"begins with the parameters of {origin}")
            with _no_refusals("training failed"):
                return _train(session, run, start, screen, profile, tracker)
        finally:
            if run is not None:
                run.release()


def _check_directory(
    run: RunDirectory | None,
    config: RunConfig,
    *,
    resume: bool,
    overwrite: bool,
    profile: range | None,
    tracker: TrackerName | None,
) -> None:
    """Raises `ValueError`, in all processes, if the directory does not fit the options."""
    if run is None:
        if resume or overwrite or profile or tracker:
            raise ValueError("resume, overwrite, profile and tracker need a run directory; give run_dir")
        return
    with together(OSError, ValueError):
        run.check(resume=resume, overwrite=overwrite)
        if resume:
            run.check_same(to_json(config))


def _new(session: Session, run: RunDirectory | None, origin: Origin | None, *, overwrite: bool) -> ResumePoint:
    """Claims and empties the run directory, and returns the start of the run."""
    start = session.begin(variables=origin and origin.variables)
    config = to_json(session.config)
    note = origin and origin.note
    with together(OSError, ValueError):
        if run is not None and is_leader():
            run.create(config, session.dataset.manifest(), note, keep=not overwrite)
    return start


def _resumed(session: Session, run: RunDirectory | None, profile: range | None) -> ResumePoint:
    """Claims the run directory and returns the start of the run at its newest checkpoint."""
    assert run is not None
    with together(OSError, ValueError):
        if is_leader():
            run.claim()
            run.extend(session.config.train.steps)
    checkpoints = Checkpoints(run.checkpoints, record=run.newest_checkpoint)
    lacks_origin = checkpoints.newest is None and run.origin.exists()
    refusal = (
        f"{run.path} was stopped before it had saved the parameters that it begins with, which {run.origin.name} "
        "names; start it again with --init-from and --overwrite"
    )
    try:
        start = session.begin(checkpoints)
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


def _train(
    session: Session,
    run: RunDirectory | None,
    start: ResumePoint,
    screen: Screen,
    profile: range | None,
    tracker: TrackerName | None,
) -> FittedRun:
    config = session.config
    began = time.monotonic()
    speed = Speed(step_work(session), session.mesh.local_devices, start.step)
    progress = Progress(screen, steps=config.train.steps, speed=speed, log_every=config.train.log_every)
    trace = contextlib.ExitStack()
    trace.callback(progress.close)
    with _failures(run), StopSignals() as signals, trace, open_files(run, config, start, speeds=True) as files:
        update = session.update
        if run is not None and profile is not None and is_leader():
            places = {"begin": start.step, "pause": speed.pause, "say": progress.say}
            update = TracedUpdate(update, profile, run.profile, **places)
            trace.callback(update.close)
        if run is not None and tracker is not None and is_leader():
            files.log.track = trace.enter_context(open_tracker(tracker, run.path, to_json(config)))
        stop = AgreedStop(signals, session.mesh)
        line = f"resumed at step {start.step}" if start.step else _baselines(session, files.log)
        if line:
            progress.say(line)
        evaluate = Validation(session).evaluate
        hooks = RunHooks(files, config, start, stop, progress.show, evaluate, speed).hooks()
        training = TrainingRun(hooks, steps=config.train.steps, step=start.step, is_stopped=lambda: stop.requested)
        one = SingleRun(update, start.state)
        for _ in run_loop(one, start.stream, [training]):
            pass
        if training.failure:
            raise Failure(f"{training.failure}; {_last_saved(files)}") from training.failure
        files.draw()
    row = files.log.last("valid/loss")
    if stop.requested:
        progress.say(f"stopped at step {training.step}, saved; continue with the same command and --resume")
    elif row:
        progress.say(f"validation at step {row['step']}\n{metrics_table(row, config.data.guessing_lines())}")
    seconds = time.monotonic() - began
    progress.say(f"{training.step} steps, {duration(seconds)} after compilation")
    if run is not None:
        progress.say(f"metrics {run.metrics}, picture {run.picture}")
        install = "" if importlib.util.find_spec("tensorboard") else "pip install -e '.[tensorboard]' && "
        progress.say(f"curves in a browser: {install}tensorboard --logdir {run.path}")
    variables = one.state(0).variables
    return FittedRun(session.blueprint, variables, config, training.step, files.log.rows, run and run.path)


def _baselines(session: Session, log: MetricsLog) -> str:
    """Records the scores that a model must beat, if the data have any, and returns them as a line."""
    scores = session.dataset.baselines()
    if not scores:
        return ""
    names = ("bits_per_byte", "perplexity")
    log.write(0, {f"baseline/{k}/{name}": getattr(s, name) for k, s in scores.items() for name in names})
    return "bits per byte to beat: " + ", ".join(f"{k} {score.bits_per_byte:.3f}" for k, score in scores.items())


def _print_start(session: Session, name: str, run: RunDirectory | None, screen: Screen) -> None:
    mesh = " ".join(f"{axis}={size}" for axis, size in session.mesh.shape.items())
    kind = session.mesh.devices.flat[0].device_kind
    what = "parameters of adapters" if session.config.train.lora_rank else "parameters"
    place = "" if run is None else f", run directory {run.path}"
    screen.say(f"{name}: {session.blueprint.n_params:,} {what}, {session.mesh.size} x {kind} ({mesh}){place}")
    if session.dataset.summary:
        screen.say(session.dataset.summary)


def _last_saved(files: RunFiles) -> str:
    """Message about the newest checkpoint, and how to begin from it."""
    remedy = "begin a run with a lower --optimizer.learning-rate"
    if files.run is None or files.checkpoints is None:
        return remedy
    with contextlib.suppress(OSError):
        files.checkpoints.wait()
    newest = files.checkpoints.newest
    if newest is None:
        return f"no checkpoint had been written; {remedy}"
    return (
        f"the newest checkpoint that was saved is that of step {newest} in {files.run.checkpoints}; {remedy}, "
        f"from there with --init-from {files.run.path}:{newest}"
    )


@contextlib.contextmanager
def _failures(run: RunDirectory | None) -> Iterator[None]:
    """Context manager: turns an `OSError` during training into a `Failure`."""
    try:
        yield
    except OSError as error:
        end = "stopped" if run is None else f"stopped, complete checkpoints are kept in {run.checkpoints}"
        raise Failure(f"{error}; {end}") from error


@contextlib.contextmanager
def _no_refusals(what: str) -> Iterator[None]:
    """Context manager: lets a `ValueError` that refuses no input (a defect, perhaps of a mixer) keep its traceback."""
    try:
        yield
    except ValueError as error:
        raise RuntimeError(what) from error
