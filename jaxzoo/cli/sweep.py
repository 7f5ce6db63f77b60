"""`python -m jaxzoo.sweep --experiment FILE --scale NAME --out DIR`: makes the runs of a figure.

Exit statuses besides those of `runner.py`: 1: runs have failed, which are listed, and all others are made, or workers
fail before they make anything; 130: interrupted, finished work is kept.
"""

import argparse
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
from jaxzoo.cli.sweep_options import open_sweep, parse
from jaxzoo.utils.screen import Failure, Screen

if TYPE_CHECKING:
    from jaxzoo.sweep.cluster import ClusterWorkers
    from jaxzoo.sweep.directory import SweepDirectory
    from jaxzoo.sweep.sweep import Sweep
    from jaxzoo.sweep.workers import LocalWorkers

PAGE = "report.html"


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
        _tell_plan(sweep, options, screen)
    else:
        _make(sweep, argv, options, screen)


def _tell_plan(sweep: "Sweep", options: argparse.Namespace, screen: Screen) -> None:
    """Measures some steps and prints the cost of the runs that the command would make; writes nothing there."""
    from jaxzoo.sweep.directory import SweepDirectory
    from jaxzoo.sweep.experiment import coordinates
    from jaxzoo.sweep.plan import MEASURE_SECONDS, expected, measure, plan
    from jaxzoo.sweep.workers import as_one_program, find_device

    others, device = _others(options), find_device()
    os.environ |= device.environment(0)  # as a worker has it; JAX has not started yet
    own = sweep.directory
    with tempfile.TemporaryDirectory() as scratch:
        sweep = dataclasses.replace(sweep, directory=SweepDirectory(Path(scratch)))
        sweep.directory.create(sweep.about(options.experiment, options.scale))
        for task in own.done():
            sweep.directory.write_result(task, own.result(task))
        _take_over(sweep, others, screen)
        screen.say(f"{sweep.experiment.title}, scale {options.scale}; measuring for {MEASURE_SECONDS:.0f} s or more")
        measured = []
        for found in measure(expected(sweep)):
            measured.append(found)
            words = f"compiled in {found.compile_seconds:.1f} s, {1e3 * found.step_seconds:.2f} ms per step"
            screen.say(f"  {coordinates(next(p for p, task in sweep.points if task.id == found.task.id))}: {words}")
        workers, vectorized = options.workers or device.n_workers, as_one_program(options.parallel, device.platform)
        for line in plan(sweep, measured, workers=workers, vectorized=vectorized):
            screen.say(line)


def _others(options: argparse.Namespace) -> "list[SweepDirectory]":
    """Sweeps whose results this one takes over: those of --reuse and the experiment's kept ones."""
    from jaxzoo.sweep.directory import SweepDirectory

    given = [SweepDirectory(Path(place).expanduser()) for place in options.reuse]
    for other in given:
        try:
            other.read_about()
        except ValueError as error:
            raise UsageError(f"--reuse: {error}") from error
    file = Path(options.experiment).expanduser()
    kept = sorted((file.parent / "results" / file.stem).glob("**/sweep.json"))
    return [*given, *(SweepDirectory(about.parent) for about in kept)]


def _take_over(sweep: "Sweep", others: "Sequence[SweepDirectory]", screen: Screen) -> None:
    for other in others:
        if n := sweep.reuse(other):
            screen.say(f"{n} runs taken over from {other.path}")


def _make(sweep: "Sweep", argv: Sequence[str], options: argparse.Namespace, screen: Screen) -> None:
    """Makes the runs that neither --reuse nor the experiment's kept results have, and the report."""
    from jaxzoo.sweep.board import SweepProgress, oversee
    from jaxzoo.sweep.plan import expected

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: the workers save first
    others, directory = _others(options), sweep.directory
    is_new = not directory.path.exists()
    directory.create(sweep.about(options.experiment, options.scale))
    try:
        workers, n_workers, who, machine = _workers(sweep, argv, options)
    except BaseException:
        if is_new:  # a refused command leaves nothing
            shutil.rmtree(directory.path, ignore_errors=True)
        raise
    _take_over(sweep, others, screen)
    directory.forget_failures()
    n_left = len(expected(sweep))
    screen.say(f"{sweep.experiment.title}, scale {options.scale}: {len(sweep.tasks)} runs, {n_left} to make")
    screen.say(f"{n_workers} {who}; {directory.path}")
    oversee(sweep, workers, n_workers, SweepProgress(screen, n_workers, machine))
    report([str(directory.path)], None, screen, experiment=options.experiment)
    n_failed = len(directory.failed() & {task.id for task in sweep.tasks})
    if n_failed:
        raise Failure(f"{n_failed} of {len(sweep.tasks)} runs failed, listed above; the same command tries them again")


def _workers(
    sweep: "Sweep", argv: Sequence[str], options: argparse.Namespace
) -> "tuple[LocalWorkers | ClusterWorkers, int, str, str | None]":
    """Workers, their number, a description, and their machine: processes of this one, or jobs of a cluster (None)."""
    from jaxzoo.cli import sweep_worker
    from jaxzoo.sweep.cluster import ClusterWorkers
    from jaxzoo.sweep.workers import LocalWorkers, as_one_program, find_device

    words, directory = [*argv, "--out", str(sweep.directory.path)], sweep.directory
    if options.cluster is not None:
        jobs = ClusterWorkers(options.cluster, dict(options.cluster_options), sweep_worker.main, words, directory)
        return jobs, options.workers, f"workers are jobs of {options.cluster}", None
    device = find_device()
    n = options.workers or device.n_workers
    together = as_one_program(options.parallel, device.platform)
    how = "runs of one program together (vmap)" if together else "runs of one program in step"
    processes = LocalWorkers(sweep_worker.__name__, [*words, "--workers", str(n)], n, device, directory.workers)
    return processes, n, f"workers on {device.number} x {device.platform}, {how}", device.machine


def report(places: Sequence[str], out: str | None, screen: Screen, *, experiment: str | None = None) -> None:
    """Writes one page over sweeps; with an experiment, first figure, table and claims of each, from its results.

    Without an experiment it shows the reports as they were written last: no file of a sweep is imported.

    Args:
      places: directories of sweeps, or folders of such directories.
      out: where to; None: into the directories themselves, the page into the first place. The report of one sweep goes
        to `out`, with all that is needed to make it again; of several, each to its own folder there.
      screen: gets lines about what there is.
      experiment: file of the experiment of all these sweeps.
    """
    from jaxzoo.sweep.directory import REPORT, SweepDirectory
    from jaxzoo.sweep.report import read_report, summary, write_page, write_report

    directories = [directory for place in places for directory in _sweeps(Path(place).expanduser())]
    home = Path(out).expanduser() if out else Path(places[0]).expanduser()
    outcomes = []
    for path in directories:
        directory, name = SweepDirectory(path), _name(path)
        target = path if out is None else home if len(directories) == 1 else home / name
        try:
            about = directory.read_about()
            if experiment is None:
                outcomes.append(read_report(directory, name))
                files = (*REPORT[:-1], directory.about.name, directory.rows.name)
            else:
                sweep = open_sweep(Path(experiment), about.scale, path)
                about = sweep.about(about.experiment, about.scale)
                rows, failures = sweep.rows(), sweep.failures()
                if directory.has_runs:
                    sweep.write_rows()
                outcomes.append(
                    write_report(sweep.experiment, sweep.scale, about, rows, target, failures=failures, name=name)
                )
                directory.write_about(about, report=path)
                files = (directory.about.name, directory.rows.name)
        except ValueError as error:
            raise UsageError(f"--report: {error}") from error
        if target.resolve() != path.resolve():
            target.mkdir(parents=True, exist_ok=True)
            for file in files:
                if (path / file).is_file():
                    shutil.copyfile(path / file, target / file)
            if experiment is not None:
                SweepDirectory(target).write_about(about, report=target)
        screen.say("\n  ".join([f"{target}: {about.title}", *summary(outcomes[-1])]))
    write_page(outcomes, home / PAGE)
    screen.say(f"page: {home / PAGE}")


def _sweeps(place: Path) -> list[Path]:
    """The sweeps at a place and in its folders, by name; the scales of a figure stand in folders of its own."""
    found = sorted(file.parent for pattern in ("", "*/", "*/*/") for file in place.glob(f"{pattern}sweep.json"))
    if not found:
        raise UsageError(f"--report {place} holds no sweep, nor do its folders; give what --out was")
    return found


def _name(path: Path) -> str:
    """Name of a sweep on a page: that of its directory, after the figure's where it is one scale of a figure."""
    path = path.resolve()
    return f"{path.parent.name}-{path.name}" if (path.parent / "sweep.json").is_file() else path.name


main: Main = partial(run, _sweep, interrupted="interrupted; finished work is kept: continue with the same command")
