"""The report of a sweep as files: picture, table, claims, and a page over many sweeps."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.config.json_files import read_json
from jaxzoo.sweep.claims import Verdict, judge
from jaxzoo.sweep.directory import REPORT, About, SweepDirectory
from jaxzoo.sweep.outcome import Failure, Outcome
from jaxzoo.sweep.page import page
from jaxzoo.sweep.results import Missing, Results, Row
from jaxzoo.sweep.sweep import reported
from jaxzoo.sweep.table import markdown
from jaxzoo.utils.figure import add_caption, render
from jaxzoo.utils.whole_files import replacing, write_whole

if TYPE_CHECKING:
    from jaxzoo.sweep.experiment import Experiment, Scale

FIGURE, CLAIMS, TABLE = "figure.svg", "claims.json", "table.md"


def write_report(
    experiment: "Experiment",
    scale: "Scale",
    about: About,
    rows: Sequence[Row],
    out: Path,
    *,
    failures: Sequence[Failure] = (),
    name: str = "",
) -> Outcome:
    """Writes `figure.png`, `figure.svg`, `table.md` and `claims.json`, each whole or not at all.

    All is made before the first is written. A figure that cannot be drawn yet is left out, and an old one removed.

    Args:
      experiment, scale: what draws the figure and has the claims, with the remarks on their verdicts.
      about, rows, failures: as in `Outcome`.
      out: directory of the files; made if need be.
      name: name on a page; default: the directory's.
    """
    pictures, reason = pictures_of(experiment, rows, about)
    svg = pictures[FIGURE]
    try:
        numbers = experiment.table(Results(rows))
    except Missing:
        numbers = ()
    outcome = Outcome(
        name=name or out.name,
        about=about,
        rows=rows,
        verdicts=judged(experiment, scale, rows),
        numbers=numbers,
        svg=svg.decode() if svg else None,
        reason=reason,
        failures=failures,
    )
    claims = json.dumps([verdict._asdict() for verdict in outcome.verdicts], indent=1, ensure_ascii=False)
    texts = {TABLE: markdown(outcome), CLAIMS: claims}
    out.mkdir(parents=True, exist_ok=True)
    for file, picture in pictures.items():
        if picture is None:
            (out / file).unlink(missing_ok=True)
            continue
        with replacing(out / file) as place:
            place.write_bytes(picture)
    for file, text in texts.items():
        write_whole(out / file, text.rstrip() + "\n")
    return outcome


def read_report(directory: SweepDirectory, name: str) -> Outcome:
    """Reads the report that was written last; imports nothing.

    Raises:
      ValueError: there is none, or a file of it is damaged.
    """
    about, claims, figure = directory.read_about(), directory.path / CLAIMS, directory.path / FIGURE
    if not (about.title and claims.is_file() and directory.rows.is_file()):
        raise ValueError(f"{directory.path} has no report yet; give its experiment: --experiment {about.experiment}")
    directory.check(REPORT[:-1])
    verdicts = read_json(claims, list[Verdict], remedy="write the report again with --experiment")
    svg = figure.read_text(encoding="utf-8") if figure.is_file() else None
    return Outcome(name=name, about=about, rows=reported(directory), verdicts=verdicts, svg=svg, reason="no figure yet")


def summary(outcome: Outcome) -> list[str]:
    """Lines to print: why there is no figure, how many points are missing, how many claims have which verdict."""
    verdicts = [verdict.verdict for verdict in outcome.verdicts]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
    reason = "" if outcome.svg else outcome.reason
    return [line for line in (reason, outcome.progress(), counts and f"claims: {counts}") if line]


def judged(experiment: "Experiment", scale: "Scale", rows: Sequence[Row]) -> list[Verdict]:
    """Verdicts on the claims of an experiment."""
    results = Results.of(rows, scale.points)
    return [judge(claim, results, scale.remarks.get(claim.name)) for claim in experiment.claims]


def write_page(outcomes: Sequence[Outcome], out: Path) -> None:
    """Writes one page over sweeps, which needs no other file and no network. Raises `ValueError`: two have one name."""
    names = [outcome.name for outcome in outcomes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two sweeps of a page have the name {name!r}: rename a directory")
    text = page(outcomes)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, text)


def pictures_of(experiment: "Experiment", rows: Sequence[Row], about: About) -> tuple[dict[str, bytes | None], str]:
    """The figure by name of the file, with the sizes of its scale below; None, and the reason, where it cannot be drawn
    yet."""
    import matplotlib

    figure, reason = None, "no figure yet: no run is finished"
    if any(row["metrics"] for row in rows):
        try:
            figure, reason = experiment.draw(Results(rows)), ""
            add_caption(figure, f"Scale {about.scale}: {about.scale_about}")
        except Missing as missing:
            reason = f"no figure yet: {missing}"
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text, on a page and in print
        return {f"figure.{kind}": figure and render(figure, kind) for kind in ("png", "svg")}, reason
