"""`jaxzoo sweep --experiment FILE --scale NAME --out DIR`: trains the runs of a figure.

Exit status 1: some runs have failed, which are listed, or all workers fail before they train anything; 130:
interrupted, finished work is kept; others as in `runner.py`.
"""

import dataclasses
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import Main, run
from jaxzoo.cli.sweep_options import SweepCommand, open_sweep, parse
from jaxzoo.utils.screen import Failure, Screen

if TYPE_CHECKING:
    from jaxzoo.sweep.cluster import ClusterWorkers
    from jaxzoo.sweep.sweep import Sweep
    from jaxzoo.sweep.workers import LocalWorkers


def _sweep(argv: Sequence[str]) -> None:
    options = parse(argv)
    screen = Screen(sys.stdout)
    if options.report:
        report(options.report, options.file, screen)
        return
    out = options.out or Path("sweeps", f"{options.file.stem}-{options.scale}")
    sweep = open_sweep(options.file, options.scale, out.expanduser(), checked=True)
    try:
        for place in options.reuse:
            type(sweep.directory)(place.expanduser()).read_about()
    except ValueError as error:
        raise UsageError(f"--reuse: {error}") from error
    if options.dry_run:
        _tell_plan(sweep, options, screen)
    else:
        _make(sweep, argv, options, screen)


def _tell_plan(sweep: "Sweep", options: SweepCommand, screen: Screen) -> None:
    """Measures some steps and prints the cost of the missing runs; writes nothing to the sweep."""
    from jaxzoo.sweep.cost import MEASURE_SECONDS, expected, measure, plan
    from jaxzoo.sweep.directory import SweepDirectory
    from jaxzoo.sweep.experiment import coordinates
    from jaxzoo.sweep.workers import as_one_program, find_device

    device = find_device()
    os.environ |= device.environment(0)  # as for a worker; JAX has not started yet
    own = sweep.directory
    with tempfile.TemporaryDirectory() as scratch:
        sweep = dataclasses.replace(sweep, directory=SweepDirectory(Path(scratch)))
        sweep.directory.create(sweep.about(str(options.file), options.scale))
        for task in own.done():
            sweep.directory.write_result(task, own.result(task))
        _take_over(sweep, options, screen)
        screen.say(f"{sweep.experiment.title}, scale {options.scale}; measuring for {MEASURE_SECONDS:.0f} s or more")
        measured = []
        for found in measure(expected(sweep)):
            measured.append(found)
            words = f"compiled in {found.compile_seconds:.1f} s, {1e3 * found.step_seconds:.2f} ms per step"
            screen.say(f"  {coordinates(next(p for p, task in sweep.points if task.id == found.spec.id))}: {words}")
        workers = options.workers or device.n_workers
        vectorized = as_one_program(options.parallel, device.platform)
        for line in plan(sweep, measured, workers=workers, vectorized=vectorized):
            screen.say(line)


def _take_over(sweep: "Sweep", options: SweepCommand, screen: Screen) -> None:
    """Copies results from the sweeps of --reuse and from the experiment's kept results."""
    from jaxzoo.sweep.directory import SweepDirectory

    file = options.file.expanduser()
    kept = sorted((file.parent / "results" / file.stem).glob("**/sweep.json"))
    for place in [*options.reuse, *(about.parent for about in kept)]:
        other = SweepDirectory(place.expanduser())
        if n := sweep.reuse(other):
            screen.say(f"{n} runs taken over from {other.path}")


def _make(sweep: "Sweep", argv: Sequence[str], options: SweepCommand, screen: Screen) -> None:
    """Trains the runs that neither --reuse nor the experiment's kept results have, and writes the report."""
    from jaxzoo.sweep.cost import expected
    from jaxzoo.sweep.oversee import SweepProgress, oversee

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: the workers save first
    directory = sweep.directory
    is_new = not directory.path.exists()
    directory.create(sweep.about(str(options.file), options.scale))
    try:
        workers, n_workers, who, machine = _workers(sweep, argv, options)
    except BaseException:
        if is_new:  # a refused command leaves no files
            shutil.rmtree(directory.path, ignore_errors=True)
        raise
    _take_over(sweep, options, screen)
    directory.forget_failures()
    n_left = len(expected(sweep))
    screen.say(f"{sweep.experiment.title}, scale {options.scale}: {len(sweep.specs)} runs, {n_left} to make")
    screen.say(f"{n_workers} worker{'s' if n_workers > 1 else ''} {who}; {directory.path}")
    oversee(sweep, workers, n_workers, SweepProgress(screen, n_workers, machine))
    report([directory.path], options.file, screen)
    n_failed = len(directory.failed() & {task.id for task in sweep.specs})
    if n_failed:
        raise Failure(f"{n_failed} of {len(sweep.specs)} runs failed, listed above; the same command tries them again")


def _workers(
    sweep: "Sweep", argv: Sequence[str], options: SweepCommand
) -> "tuple[LocalWorkers | ClusterWorkers, int, str, str | None]":
    """Returns workers, their number, their description, and their machine (None: jobs of a cluster)."""
    from jaxzoo.cli import sweep_worker
    from jaxzoo.sweep.cluster import ClusterWorkers
    from jaxzoo.sweep.workers import LocalWorkers, as_one_program, find_device

    directory = sweep.directory
    words = [*argv, "--out", str(directory.path)]
    if options.cluster is not None and options.workers is not None:
        jobs = ClusterWorkers(options.cluster, options.of_cluster(), sweep_worker.main, words, directory)
        return jobs, options.workers, f"as jobs of {options.cluster}", None
    device = find_device()
    n = options.workers or device.n_workers
    together = as_one_program(options.parallel, device.platform)
    how = "runs that differ only in learning rate or seed train " + (
        "in one program (vmap)" if together else "together"
    )
    processes = LocalWorkers(sweep_worker.__name__, [*words, "--workers", str(n)], n, device, directory.workers)
    return processes, n, f"on {device.number} x {device.platform}; {how}", device.machine


def report(places: Sequence[str | Path], experiment: str | Path, screen: Screen) -> None:
    """Writes figure, table and claims of sweeps of one experiment, finished or not, to their directories."""
    from jaxzoo.sweep.directory import SweepDirectory
    from jaxzoo.sweep.report_files import write_report

    for place in places:
        directory = SweepDirectory(Path(place).expanduser())
        try:
            stored = directory.read_about()
            sweep = open_sweep(Path(experiment), stored.scale, directory.path)
            about = sweep.about(stored.experiment, stored.scale)
            if directory.has_runs:
                sweep.write_rows()
            lines = write_report(
                sweep.experiment, sweep.scale, about, sweep.rows(), directory.path, failures=sweep.failures()
            )
            directory.write_about(about, is_reported=True)
        except ValueError as error:
            raise UsageError(f"--report: {error}") from error
        screen.say("\n  ".join([f"{directory.path}: {about.title}", *lines]))


main: Main = partial(run, _sweep, interrupted="interrupted; finished work is kept: continue with the same command")
