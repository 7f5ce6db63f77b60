"""Loop of a worker: takes runs from the queue of a sweep and trains them, until none is left."""

import contextlib
import datetime
import itertools
import math
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxzoo.config.config_io import to_json
from jaxzoo.evals.validation import Validation
from jaxzoo.models.accounting import state_bytes
from jaxzoo.parallel.agreement import StopSignals
from jaxzoo.sweep.directory import SweepDirectory
from jaxzoo.sweep.experiment import Measurement
from jaxzoo.sweep.machine import commit, machine, versions
from jaxzoo.sweep.queue import RunQueue
from jaxzoo.sweep.run_spec import RunSpec
from jaxzoo.sweep.sweep import Sweep
from jaxzoo.sweep.train import SweepRun, curve, train_runs
from jaxzoo.train.run_dir import InUseError, RunDirectory
from jaxzoo.train.session import Session
from jaxzoo.train.speed import train_flops

WAIT_SECONDS = 2.0
"""Time between two checks of a queue without free runs."""


def work(
    sweep: Sweep,
    queue: RunQueue,
    *,
    workers: int,
    vectorized: bool,
    stop: StopSignals,
    keep_checkpoints: bool = False,
) -> None:
    """Trains runs until all have a result or have failed, here or in another worker, or until it is stopped.

    Args:
      workers: number of workers; each takes its share of the runs.
      vectorized: whether runs that share a program are vmapped.
      keep_checkpoints: whether the last checkpoint of a run is kept.
    """
    directory = sweep.directory
    while not stop.requested:
        now, later = sweep.left()
        if not now and not later:
            return
        # The first free run, and others that share its program, up to this worker's share.
        taken: list[RunSpec] = []
        share = math.ceil(len(now) / workers)
        for spec in now:
            if len(taken) < share and (not taken or spec.program == taken[0].program) and queue.take(spec.id):
                taken.append(spec)
        if not taken:
            time.sleep(WAIT_SECONDS)
            continue
        _make(taken, directory, queue, vectorized, stop)
        for spec in taken:
            if not keep_checkpoints and directory.has_result(spec.id):
                shutil.rmtree(directory.run(spec.id).checkpoints, ignore_errors=True)
            queue.release(spec.id)
        if not stop.requested and not any(directory.is_settled(spec.id) for spec in taken):
            time.sleep(WAIT_SECONDS)  # another process holds their directories


def _make(
    specs: Sequence[RunSpec], directory: SweepDirectory, queue: RunQueue, vectorized: bool, stop: StopSignals
) -> None:
    """Trains runs that share a program and writes their results. If that fails, trains each run by itself; a run that
    fails again gets a failure, whatever its exception, and the other runs continue."""
    open_specs = {spec.id: spec for spec in specs}
    try:
        if isinstance(specs[0].config, Measurement):
            results = map(_measured, specs)
        else:
            results = _trained(specs, directory, queue, vectorized, stop)
        for result in results:
            directory.write_result(result["id"], result)
            del open_specs[result["id"]]
        return
    except Exception as error:
        if len(specs) == 1:
            line = " ".join(f"{type(error).__name__}: {error}".split())
            directory.write_failure(specs[0].id, {"error": line[:500], "traceback": traceback.format_exc()})
            return
    for spec in open_specs.values():  # outside of the handler, where the arrays of the group are freed
        if not stop.requested:
            _make([spec], directory, queue, False, stop)


def _measured(spec: RunSpec) -> dict[str, Any]:
    assert isinstance(spec.config, Measurement)
    clock, cpu_clock = time.perf_counter(), time.process_time()
    metrics = dict(spec.config.function(**spec.config.arguments))
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - cpu_clock
    cost = {"seconds": round(seconds, 2), "cpu_seconds": round(cpu_seconds, 2)}
    return {**_facts(spec), "status": "finished", "metrics": metrics, "curve": {"train": [], "valid": []}, **cost}


def _trained(
    specs: Sequence[RunSpec], directory: SweepDirectory, queue: RunQueue, vectorized: bool, stop: StopSignals
) -> Iterator[dict[str, Any]]:
    session = Session(specs[0].trained, limited=True)
    runs: dict[str, RunDirectory] = {spec.id: directory.run(spec.id) for spec in specs}
    members: list[SweepRun] = []
    with jax.set_mesh(session.mesh):
        try:
            for spec in specs:
                with contextlib.suppress(InUseError):  # another process writes there
                    members.append(SweepRun(spec, runs[spec.id], session))
            for member in members:
                if member.start.step:
                    member.seconds, member.cpu_seconds = directory.cost(member.spec.id)
            asked = {name: Validation(Session(config)) for name, config in specs[0].also.items()}
            members.sort(key=lambda member: -member.start.step)  # the most advanced first
            for _, group in itertools.groupby(members, key=lambda member: member.start.step):
                trained = train_runs(
                    list(group),
                    session,
                    vectorized=vectorized,
                    evaluate=Validation(session).evaluate,
                    tell=queue.tell,
                    stop=stop,
                )
                for member, state in trained:
                    if state is not None:
                        others = {name: other.evaluate(state.variables) for name, other in asked.items()}
                        yield _result(member, session, others)
        finally:
            for run in runs.values():
                run.release()
            for member in members:
                if not directory.has_result(member.spec.id):
                    directory.write_cost(member.spec.id, member.seconds, member.cpu_seconds)


def _result(member: SweepRun, session: Session, others: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    rows, config = member.rows(), member.spec.trained
    last = next((row for row in reversed(rows) if "valid/accuracy" in row), {})
    metrics = {name: value for name, value in last.items() if name.startswith("valid/")}
    metrics |= {f"{name}/{key}": value for name, found in others.items() for key, value in found.items()}
    diverged, model = member.diverged, session.config.model
    return {
        **_facts(member.spec),
        "status": "diverged" if diverged else "finished",
        "metrics": {} if diverged else metrics,
        "curve": curve(rows),
        "steps": member.training.step,
        "guess": guesses(member.spec),
        "seconds": round(member.seconds, 2),
        "cpu_seconds": round(member.cpu_seconds, 2),
        "flops": train_flops(config, member.training.step),
        "n_parameters": session.blueprint.n_params,
        "state_bytes": state_bytes(model, session.dataset.max_length) if model.streams else None,
        "config": to_json(config),
    }


def guesses(spec: RunSpec) -> dict[str, float]:
    """Guessing lines of the run and of its further validations, by metric."""
    found = dict(spec.trained.data.guessing_lines())
    for name, config in spec.also.items():
        found |= {f"{name}/{metric}": line for metric, line in config.data.guessing_lines().items()}
    return found


def _facts(spec: RunSpec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "versions": versions(),
        "commit": commit(),
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
    }
