"""`python -m jaxzoo.sweep --report DIR ...`: figures, tables, claims and the page of sweeps, finished or not."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.sweep_experiment import open_sweep
from jaxzoo.screen import Screen

if TYPE_CHECKING:
    from jaxzoo.sweep.outcome import Outcome
    from jaxzoo.sweep.sweep import Sweep

PAGE = "report.html"


def report(places: Sequence[str], out: str | None, screen: Screen) -> None:
    """Writes the report of each sweep, and one page over all.

    Args:
      places: directories of sweeps, or folders of such directories.
      out: where to; None: into the directories themselves, the page into the first place. The report of one sweep goes
        to `out`, together with what it needs to be made again; of several, each to its own folder there.
      screen: gets lines about what there is.

    Raises:
      UsageError: a place holds no sweep, or the experiment of one cannot be read.
    """
    from jaxzoo.sweep.report import write_page, write_report

    directories = [directory for place in places for directory in _sweeps(Path(place).expanduser())]
    home = Path(out).expanduser() if out else Path(places[0]).expanduser()
    outcomes = []
    for directory in directories:
        sweep = read_sweep(directory)
        target = directory if out is None else home if len(directories) == 1 else home / directory.name
        if sweep.directory.has_runs:
            sweep.write_rows()
        outcomes.append(outcome_of(sweep, target.name))
        lines = write_report(outcomes[-1], target)
        if target.resolve() != directory.resolve():
            for file in (sweep.directory.about, sweep.directory.rows):
                shutil.copyfile(file, target / file.name)
        screen.say("\n  ".join([f"{target}: {sweep.experiment.title}", *lines]))
    write_page(outcomes, home / PAGE)
    screen.say(f"page: {home / PAGE}")


def _sweeps(place: Path) -> list[Path]:
    """The sweeps at a place and in its folders, by name; the scales of a figure stand in folders of its own."""
    found = sorted(file.parent for pattern in ("", "*/", "*/*/") for file in place.glob(f"{pattern}sweep.json"))
    if not found:
        raise UsageError(f"--report {place} holds no sweep, nor do its folders; give what --out was")
    return found


def read_sweep(directory: Path) -> "Sweep":
    """Opens the sweep of a directory."""
    from jaxzoo.sweep.directory import SweepDirectory

    about = SweepDirectory(directory).read_about()
    return open_sweep(Path(about.experiment), about.scale, directory)


def outcome_of(sweep: "Sweep", name: str) -> "Outcome":
    """Collects what a report shows of a sweep."""
    from jaxzoo.sweep.outcome import Outcome

    about = sweep.directory.read_about()
    return Outcome(
        name=name,
        experiment=sweep.experiment,
        scale_name=about.scale,
        scale=sweep.scale,
        rows=sweep.rows(),
        failures=sweep.failures(),
        command=f"python -m jaxzoo.sweep --experiment {about.experiment} --scale {about.scale}",
    )
