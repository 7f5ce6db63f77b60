"""Files of a sweep's report: picture, table and claims."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.sweep.claims import judge
from jaxzoo.sweep.directory import About
from jaxzoo.sweep.results import Missing, Results, Row
from jaxzoo.sweep.table import Failure, Outcome, markdown
from jaxzoo.utils.figure import add_caption, import_matplotlib, render
from jaxzoo.utils.whole_files import replacing, write_whole

if TYPE_CHECKING:
    from jaxzoo.sweep.experiment import Experiment, Scale


def write_report(
    experiment: "Experiment",
    scale: "Scale",
    about: About,
    rows: Sequence[Row],
    out: Path,
    *,
    failures: Sequence[Failure] = (),
) -> list[str]:
    """Writes `figure.png`, `figure.svg`, `table.md` and `claims.json`, each whole or not at all.

    Everything is computed before the first file is written. If the figure cannot be drawn yet, an old one is removed.

    Returns:
      Lines to print: why there is no figure, how many points are missing, how many claims have which verdict.
    """
    pictures, reason = _pictures(experiment, rows, about)
    outcome = judged(experiment, scale, about, rows, failures)
    claims = json.dumps([verdict._asdict() for verdict in outcome.verdicts], indent=1, ensure_ascii=False)
    texts = {"table.md": markdown(outcome), "claims.json": claims}
    out.mkdir(parents=True, exist_ok=True)
    for file, picture in pictures.items():
        if picture is None:
            (out / file).unlink(missing_ok=True)
            continue
        with replacing(out / file) as place:
            place.write_bytes(picture)
    for file, text in texts.items():
        write_whole(out / file, text.rstrip() + "\n")
    verdicts = [verdict.verdict for verdict in outcome.verdicts]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
    return [line for line in (reason, outcome.progress(), counts and f"claims: {counts}") if line]


def judged(
    experiment: "Experiment",
    scale: "Scale",
    about: About,
    rows: Sequence[Row],
    failures: Sequence[Failure] = (),
) -> Outcome:
    """Tests the claims of an experiment on the rows, and makes its table."""
    results = Results.of(rows, scale.points)
    verdicts = [judge(claim, results, scale.remarks.get(claim.name)) for claim in experiment.claims]
    try:
        numbers = experiment.table(Results(rows))
    except Missing:
        numbers = ()
    return Outcome(about=about, rows=rows, verdicts=verdicts, numbers=numbers, failures=failures)


def _pictures(experiment: "Experiment", rows: Sequence[Row], about: About) -> tuple[dict[str, bytes | None], str]:
    """Contents of the figure's files, with the sizes of the scale below it; None, and the reason, if it cannot be drawn
    yet."""
    figure = None
    reason = "no figure yet: no run is finished"
    if any(row["metrics"] for row in rows):
        try:
            figure = experiment.draw(Results(rows))
            reason = ""
            untuned = f" (not tuned: {about.untuned})" if about.untuned else ""
            add_caption(figure, f"Scale {about.scale}{untuned}: {about.scale_about}")
        except Missing as missing:
            reason = f"no figure yet: {missing}"
    with import_matplotlib().rc_context({"svg.fonttype": "none"}):  # text stays text
        return {f"figure.{kind}": figure and render(figure, kind) for kind in ("png", "svg")}, reason
