"""Cost of a sweep before it is run: runs, programs, time and disk."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax

from jaxzoo.evals.validation import Validation
from jaxzoo.models.accounting import count_parameters
from jaxzoo.sweep.lockstep import SequentialRuns
from jaxzoo.sweep.run_spec import Rates, RunSpec
from jaxzoo.sweep.sweep import Sweep
from jaxzoo.train.config import RunConfig
from jaxzoo.train.session import Session
from jaxzoo.train.speed import train_flops
from jaxzoo.utils.text_table import duration

MEASURE_SECONDS = 20.0
"""Time limit of the measurements; the time of other programs is estimated."""
STEPS = 5
STEP_SECONDS = 0.5
"""Least number and time of measured steps per program. Their median counts, because the batches of the first steps were
made during the compilation."""
EVENTS_BYTES = 20_000
"""Approximate size of the metrics of a run on disk."""


class MeasuredProgram(NamedTuple):
    """A program that was measured."""

    spec: RunSpec
    compile_seconds: float
    step_seconds: float
    """Time of a step and its share of the validations."""


def expected(sweep: Sweep) -> list[RunSpec]:
    """Runs that are left, assuming that the first learning rates are the best if the search is not finished."""
    now, later = sweep.left()
    if sweep.scale.all_seeds is None:
        return now
    first: set[str] = set()
    for rates in sweep.places:
        first |= {spec.id for seeds in list(rates.values())[: sweep.scale.all_seeds] for spec in seeds.values()}
    return now + [spec for spec in later if spec.id in first]


def measure(specs: Sequence[RunSpec], seconds: float = MEASURE_SECONDS) -> Iterator[MeasuredProgram]:
    """Compiles programs and runs a few steps of each: one program per mixer, then others until the time limit."""
    programs = list({spec.program: spec for spec in specs if isinstance(spec.config, RunConfig)}.values())
    of_mixers: dict[str, list[RunSpec]] = {}
    for spec in sorted(programs, key=lambda spec: spec.step_flops):
        of_mixers.setdefault(spec.mixers, []).append(spec)
    first = [alike[len(alike) // 2] for alike in of_mixers.values()]
    others = [spec for spec in programs if spec not in first]
    # In this order every prefix is spread evenly over all programs.
    others = [others[i] for i in sorted(range(len(others)), key=lambda i: (i * (math.sqrt(5) - 1) / 2) % 1)]
    deadline = time.monotonic() + seconds
    for i, spec in enumerate([*first, *others]):
        if i >= len(first) and time.monotonic() > deadline:
            return
        yield _measured(spec)


def _measured(spec: RunSpec) -> MeasuredProgram:
    session = Session(spec.trained, jax.devices()[:1])
    with jax.set_mesh(session.mesh):
        lanes = SequentialRuns(session, [session.init_state()], [spec.trained.optimizer.learning_rate])
        stream = session.dataset.train()
        first, step = _first_and_median(lambda: lanes.update([next(stream)], [0])[0][0](), STEPS, STEP_SECONDS)
        every = spec.trained.train.eval_every
        if not every:
            return MeasuredProgram(spec, first - step, step)
        validation = Validation(session)
        first_validation, median = _first_and_median(lambda: validation.evaluate(lanes.state(0).variables), 1)
    return MeasuredProgram(spec, first - step + first_validation - median, step + median / every)


def _first_and_median(run: Callable[[], object], times: int, least_seconds: float = 0.0) -> tuple[float, float]:
    """Seconds of the first call, which compiles, and the median of at least `times` later ones."""
    seconds = []
    while len(seconds) <= times or sum(seconds[1:]) < least_seconds:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds[0], statistics.median(seconds[1:])


def plan(sweep: Sweep, measured: Sequence[MeasuredProgram], *, workers: int, vectorized: bool) -> list[str]:
    """Lines of the plan; `vectorized`: the runs of one program are trained together."""
    left = expected(sweep)
    training = [spec for spec in left if isinstance(spec.config, RunConfig)]
    programs = {spec.program for spec in left}
    flops = sum(train_flops(spec.trained) for spec in training)
    # The largest model: parameters and two moments, float32.
    models = {spec.trained.model for spec in training}
    width = max((model.d_model for model in models), default=0)
    checkpoint = 12 * max((count_parameters(model) for model in models if model.d_model == width), default=0)
    disk = len(left) * EVENTS_BYTES + checkpoint * 2 * workers
    lines = [
        f"points: {len(sweep.points)}; runs: {len(sweep.specs)}, of which {len(left)} are missing",
        f"programs to compile: {len(programs)}, {'each for all its runs' if vectorized else 'each by every worker'}",
        f"training: {flops:.2e} FLOPs",
        f"disk: about {disk / 1e6:.0f} MB, of which {checkpoint * 2 * workers / 1e6:.0f} for runs under way",
    ]
    return [*lines, *_time(sweep, training, measured, workers)]


def _time(sweep: Sweep, training: Sequence[RunSpec], measured: Sequence[MeasuredProgram], workers: int) -> list[str]:
    if not measured:
        return []
    done = {run: sweep.directory.result(run) for run in sweep.directory.done()}
    known = {m.spec.program: m.step_seconds for m in measured}
    rates = Rates(sweep.specs, {m.spec.id: m.step_seconds for m in measured}, done)
    steps = seconds = 0.0
    at_most = False
    for spec in training:
        share = rates.share(spec)
        at_most |= share is None and spec.trained.train.stop_at_accuracy > 0
        made = spec.trained.train.steps * (1 if share is None else share)
        steps += made
        seconds += made * (known.get(spec.program) or rates.step_seconds(spec) or 0.0)
    programs = {spec.program for spec in training}
    compiling = len(programs) * sum(m.compile_seconds for m in measured) / len(measured)
    all_steps = sum(spec.trained.train.steps for spec in training)
    early = ""
    if steps < all_steps:
        early = f"; runs stop after {steps / all_steps:.0%} of their steps on average, by those that are done"
    if at_most:
        early += "; less where runs stop early"
    return [
        f"time: {'at most ' if at_most else ''}{duration((seconds + compiling) / workers)} by {workers} workers: "
        f"{duration(seconds)} of steps and validations, {duration(compiling)} of compilation (steps of {len(known)} of "
        f"{len(programs)} programs measured here, the others by their FLOPs){early}"
    ]
