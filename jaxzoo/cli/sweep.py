"""`python -m jaxzoo.sweep --experiment FILE --scale NAME --out DIR`: makes the runs of a figure.

Exit statuses besides those of `runner.py`: 1: runs have failed, which are listed, and all others are made, or workers
fail before they make anything; 130: interrupted, finished work is kept.
"""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import run
from jaxzoo.cli.sweep_options import open_sweep, parse
from jaxzoo.cli.sweep_report import report
from jaxzoo.screen import Failure, Screen

if TYPE_CHECKING:
    from jaxzoo.sweep.cluster import ClusterWorkers
    from jaxzoo.sweep.directory import SweepDirectory
    from jaxzoo.sweep.sweep import Sweep
    from jaxzoo.sweep.workers import LocalWorkers


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(_sweep, argv, interrupted="interrupted; finished work is kept: continue with the same command")


def _sweep(argv: Sequence[str]) -> None:
    options, screen = parse(argv), Screen(sys.stdout)
    if options.report:
        report(options.report, options.out, screen, experiment=options.experiment)
        return
    if options.experiment is None:
        raise UsageError(
            "--experiment FILE is required, such as --experiment experiments/zoology_figure2.py; see --help"
        )
    file = Path(options.experiment)
    out = Path(options.out) if options.out else Path("sweeps", f"{file.stem}-{options.scale}")
    sweep = open_sweep(file, options.scale, out.expanduser(), checked=True)
    if options.dry_run:
        if options.reuse:
            raise UsageError("--dry-run writes nothing and takes nothing over: leave --reuse out")
        _tell_plan(sweep, options, screen)
    else:
        _make(sweep, argv, options, screen)


def _tell_plan(sweep: "Sweep", options: argparse.Namespace, screen: Screen) -> None:
    """Measures some steps and prints the cost of the sweep; writes nothing."""
    from jaxzoo.sweep.experiment import coordinates
    from jaxzoo.sweep.plan import MEASURE_SECONDS, expected, measure, plan
    from jaxzoo.sweep.workers import as_one_program, find_device

    device = find_device()
    os.environ |= device.environment(0)  # as a worker has it; JAX has not started yet
    screen.say(f"{sweep.experiment.title}, scale {options.scale}; measuring for at most {MEASURE_SECONDS:.0f} s")
    measured = []
    for found in measure(expected(sweep)):
        measured.append(found)
        words = f"compiled in {found.compile_seconds:.1f} s, {1e3 * found.step_seconds:.2f} ms per step"
        screen.say(f"  {coordinates(next(p for p, task in sweep.points if task.id == found.task.id))}: {words}")
    workers, vectorized = options.workers or device.n_workers, as_one_program(options.parallel, device.platform)
    for line in plan(sweep, measured, workers=workers, vectorized=vectorized):
        screen.say(line)


def _make(sweep: "Sweep", argv: Sequence[str], options: argparse.Namespace, screen: Screen) -> None:
    """Makes the missing runs and the report."""
    from jaxzoo.sweep.board import Board, oversee
    from jaxzoo.sweep.plan import expected

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: the workers save first
    directory, others = sweep.directory, _other_sweeps(options)
    is_new = not directory.path.exists()
    directory.create(sweep.about(options.experiment, options.scale))
    try:
        workers, n_workers, who = _workers(sweep, argv, options)
    except BaseException:
        if is_new:  # a refused command leaves nothing
            shutil.rmtree(directory.path, ignore_errors=True)
        raise
    for other in others:
        if n := sweep.reuse(other):
            screen.say(f"{n} runs taken over from {other.path}")
    directory.forget_failures()
    n_left = len(expected(sweep))
    screen.say(f"{sweep.experiment.title}, scale {options.scale}: {len(sweep.tasks)} runs, {n_left} to make")
    screen.say(f"{n_workers} {who}; {directory.path}")
    oversee(sweep, workers, n_workers, Board(screen, n_workers))
    report([str(directory.path)], None, screen, experiment=options.experiment)
    n_failed = len(directory.failed() & {task.id for task in sweep.tasks})
    if n_failed:
        raise Failure(f"{n_failed} of {len(sweep.tasks)} runs failed, listed above; the same command tries them again")


def _other_sweeps(options: argparse.Namespace) -> list["SweepDirectory"]:
    """Sweeps whose results are copied: those of --reuse, and those in `results/NAME` next to the experiment NAME.

    Raises:
      UsageError: one of --reuse holds no sweep.
    """
    from jaxzoo.sweep.directory import SweepDirectory

    found = [SweepDirectory(Path(place).expanduser()) for place in options.reuse]
    for directory in found:
        try:
            directory.read_about()
        except ValueError as error:
            raise UsageError(f"--reuse: {error}") from error
    file = Path(options.experiment).expanduser()
    kept = sorted((file.parent / "results" / file.stem).glob("**/sweep.json"))
    return [*found, *(SweepDirectory(about.parent) for about in kept)]


def _workers(
    sweep: "Sweep", argv: Sequence[str], options: argparse.Namespace
) -> "tuple[LocalWorkers | ClusterWorkers, int, str]":
    """Workers, their number, and a description: processes of this machine, or jobs of a cluster."""
    from jaxzoo.cli import sweep_worker
    from jaxzoo.sweep.cluster import ClusterWorkers
    from jaxzoo.sweep.workers import LocalWorkers, as_one_program, find_device

    words, directory = [*argv, "--out", str(sweep.directory.path)], sweep.directory
    if options.cluster is not None:
        jobs = ClusterWorkers(options.cluster, dict(options.cluster_options), sweep_worker.main, words, directory)
        return jobs, options.workers, f"workers are jobs of {options.cluster}"
    device = find_device()
    n = options.workers or device.n_workers
    together = as_one_program(options.parallel, device.platform)
    how = "runs of one program together (vmap)" if together else "runs of one program in step"
    processes = LocalWorkers(sweep_worker.__name__, [*words, "--workers", str(n)], n, device, directory.workers)
    return processes, n, f"workers on {device.number} x {device.platform}, {how}"
