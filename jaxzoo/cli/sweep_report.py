"""`python -m jaxzoo.sweep --report DIR ...`: figures, tables, claims and the page of sweeps, finished or not."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.sweep_options import open_sweep
from jaxzoo.screen import Screen

PAGE = "report.html"


def report(places: Sequence[str], out: str | None, screen: Screen, *, experiment: str | None = None) -> None:
    """Writes one page over sweeps; with an experiment, first figure, table and claims of each, from its results.

    Without an experiment it shows the reports as they were written last: no file of a sweep is imported.

    Args:
      places: directories of sweeps, or folders of such directories.
      out: where to; None: into the directories themselves, the page into the first place. The report of one sweep goes
        to `out`, together with what it needs to be made again; of several, each to its own folder there.
      screen: gets lines about what there is.
      experiment: file of the experiment of all these sweeps.

    Raises:
      UsageError: a place holds no sweep, one that has no report yet, or one of another experiment.
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
