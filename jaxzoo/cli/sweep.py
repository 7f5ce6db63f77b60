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
from jaxzoo.cli.runner import Failure, run
from jaxzoo.cli.sweep_experiment import open_sweep
from jaxzoo.cli.sweep_options import parse
from jaxzoo.cli.sweep_report import report
from jaxzoo.screen import Screen

if TYPE_CHECKING:
    from jaxzoo.sweep.directory import SweepDirectory
    from jaxzoo.sweep.launch import Device
    from jaxzoo.sweep.oversee import Workers
    from jaxzoo.sweep.sweep import Sweep

WORKER = "jaxzoo.cli.sweep_worker"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(_sweep, argv, interrupted="interrupted; finished work is kept: continue with the same command")


def _sweep(argv: Sequence[str]) -> None:
    options = parse(argv)
    screen = Screen(sys.stdout)
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
        tell_plan(sweep, options, screen)
    else:
        make(sweep, file, options, screen)


def tell_plan(sweep: "Sweep", options: argparse.Namespace, screen: Screen) -> None:
    """Measures some steps and prints the cost of the sweep; writes nothing."""
    from jaxzoo.sweep.experiment import in_words
    from jaxzoo.sweep.launch import as_one_program, environment, find_device
    from jaxzoo.sweep.plan import MEASURE_SECONDS, expected, measure, plan

    device = find_device()
    os.environ |= environment(0, device)  # as a worker has it; JAX has not started yet
    screen.say(f"{sweep.experiment.title}, scale {options.scale}; measuring for at most {MEASURE_SECONDS:.0f} s")
    measured = []
    for found in measure(expected(sweep)):
        measured.append(found)
        words = f"compiled in {found.compile_seconds:.1f} s, {1e3 * found.step_seconds:.2f} ms per step"
        screen.say(f"  {in_words(next(p for p, task in sweep.points if task.id == found.task.id))}: {words}")
    workers, vectorized = options.workers or workers_here(device), as_one_program(options.parallel, device.platform)
    for line in plan(sweep, measured, workers=workers, vectorized=vectorized):
        screen.say(line)


def make(sweep: "Sweep", file: Path, options: argparse.Namespace, screen: Screen) -> None:
    """Makes the missing runs and the report."""
    from jaxzoo.sweep.board import Board
    from jaxzoo.sweep.oversee import WorkersError, oversee
    from jaxzoo.sweep.plan import expected

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: the workers save first
    others, is_new = other_sweeps(options.reuse) + kept_results(file), not sweep.directory.path.exists()
    sweep.directory.create(sweep.about(str(file), options.scale))
    try:
        workers, n_workers, who = _local_workers(sweep, options) if options.cluster is None else _jobs(sweep, options)
    except BaseException:
        if is_new:  # a refused command leaves nothing
            shutil.rmtree(sweep.directory.path, ignore_errors=True)
        raise
    for other in others:
        if n := sweep.reuse(other):
            screen.say(f"{n} runs taken over from {other.path}")
    sweep.directory.forget_failures()
    n_left = len(expected(sweep))
    screen.say(f"{sweep.experiment.title}, scale {options.scale}: {len(sweep.tasks)} runs, {n_left} to make")
    screen.say(f"{n_workers} {who}; {sweep.directory.path}")
    try:
        oversee(sweep, workers, n_workers, Board(screen, n_workers))
    except WorkersError as error:
        raise Failure(str(error), 1) from error
    report([str(sweep.directory.path)], None, screen, experiment=str(file))
    n_failed = len(sweep.directory.failed() & {task.id for task in sweep.tasks})
    if n_failed:
        raise Failure(
            f"{n_failed} of {len(sweep.tasks)} runs failed, listed above; the same command tries them again", 1
        )


def kept_results(file: Path) -> list["SweepDirectory"]:
    """Results that are kept next to an experiment, in `results/<its name>`: what they hold is not made again."""
    from jaxzoo.sweep.directory import SweepDirectory

    home = file.expanduser().parent / "results" / file.stem
    return [SweepDirectory(found.parent) for found in sorted(home.glob("**/sweep.json"))]


def other_sweeps(places: Sequence[str]) -> list["SweepDirectory"]:
    """Directories of sweeps whose results are copied.

    Raises:
      UsageError: one of them holds no sweep.
    """
    from jaxzoo.sweep.directory import SweepDirectory

    found = [SweepDirectory(Path(place).expanduser()) for place in places]
    for directory in found:
        try:
            directory.read_about()
        except ValueError as error:
            raise UsageError(f"--reuse: {error}") from error
    return found


def _local_workers(sweep: "Sweep", options: argparse.Namespace) -> "tuple[Workers, int, str]":
    """Workers that are processes of this machine, their number, and a description."""
    from jaxzoo.sweep.launch import LocalWorkers, as_one_program, find_device

    device = find_device()
    n_workers = options.workers or workers_here(device)
    command = [sys.executable, "-m", WORKER, *_words(sweep, options, n_workers)]
    vectorized = as_one_program(options.parallel, device.platform)
    how = "runs of one program together (vmap)" if vectorized else "runs of one program in step"
    who = f"workers on {device.number} x {device.platform}, {how}"
    return LocalWorkers(command, n_workers, device, sweep.directory.workers), n_workers, who


def _jobs(sweep: "Sweep", options: argparse.Namespace) -> "tuple[Workers, int, str]":
    """Workers that are jobs of a cluster, each of which finds its device on its node."""
    from jaxzoo.cli.sweep_worker import main as worker
    from jaxzoo.sweep.cluster import ClusterWorkers

    words = ["--job", *_words(sweep, options, options.workers)]
    workers = ClusterWorkers(options.cluster, dict(options.cluster_options), worker, words, sweep.directory)
    return workers, options.workers, f"workers are jobs of {options.cluster}"


def _words(sweep: "Sweep", options: argparse.Namespace, n_workers: int) -> list[str]:
    """Command line of a worker without its name."""
    words = [str(sweep.directory.path), "--experiment", options.experiment, "--scale", options.scale]
    words += ["--workers", str(n_workers), "--parallel", options.parallel]
    return [*words, "--keep-checkpoints"] if options.keep_checkpoints else words


def workers_here(device: "Device") -> int:
    """Default number of workers: one per CPU core, one per GPU, one for all chips of a TPU."""
    if device.platform == "cpu":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return device.number if device.platform == "gpu" else 1
