"""The report of a sweep as files: picture, table, claims, and a page over many sweeps."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.sweep.outcome import Outcome
from jaxzoo.sweep.page import Section, page
from jaxzoo.sweep.results import Missing, Results
from jaxzoo.sweep.table import markdown
from jaxzoo.whole_files import replacing
from pallas_kernels.figure import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(outcome: Outcome, out: Path) -> list[str]:
    """Writes `figure.png`, `figure.svg`, `table.md` and `claims.json`, each whole or not at all.

    All is made before the first is written. A figure that cannot be drawn yet is left out, and an old one removed.

    Args:
      outcome: of the sweep.
      out: directory of the files; made if need be.

    Returns:
      Lines to print: why there is no figure, how many points are missing, how many claims have which verdict.
    """
    figure, reason = _drawn(outcome)
    pictures = {f"figure.{kind}": figure and render(figure, kind) for kind in ("png", "svg")}
    texts = {"table.md": markdown(outcome), "claims.json": json.dumps(_claims(outcome), indent=1, ensure_ascii=False)}
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        if picture is None:
            (out / name).unlink(missing_ok=True)
        else:
            _write(out / name, picture)
    for name, text in texts.items():
        _write(out / name, (text.rstrip() + "\n").encode())
    verdicts = [verdict.verdict for verdict in outcome.verdicts()]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
    return [line for line in (reason, outcome.progress(), counts and f"claims: {counts}") if line]


def write_page(outcomes: Sequence[Outcome], out: Path) -> None:
    """Writes one page over sweeps, which needs no other file and no network: whole, or not at all.

    Args:
      outcomes: of the sweeps, in the order of the page.
      out: file of the page, such as `report.html`.

    Raises:
      ValueError: two of them have one name.
    """
    names = [outcome.name for outcome in outcomes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two sweeps of a page have the name {name!r}: rename a directory")
    text = page([_section(outcome) for outcome in outcomes])
    out.parent.mkdir(parents=True, exist_ok=True)
    _write(out, text.encode())


def _section(outcome: Outcome) -> Section:
    import matplotlib

    figure, reason = _drawn(outcome)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        return Section(outcome, figure and render(figure, "svg").decode(), reason)


def _drawn(outcome: Outcome) -> "tuple[Figure | None, str]":
    """The figure, or None and why it cannot be drawn yet."""
    if not any(row["metrics"] for row in outcome.rows):
        return None, "no figure yet: no run is finished"
    try:
        return outcome.experiment.draw(Results(outcome.rows)), ""
    except Missing as missing:
        return None, f"no figure yet: {missing}"


def _claims(outcome: Outcome) -> list[dict[str, str | None]]:
    return [
        {
            "name": claim.name,
            "quote": claim.quote,
            "text": claim.text,
            "source": claim.source,
            "rule": claim.rule,
            "verdict": verdict,
            "numbers": numbers,
            "control": control,
            "remark": outcome.scale.remarks.get(claim.name),
        }
        for claim, verdict, numbers, control in outcome.verdicts()
    ]


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    with replacing(path) as place:
        place.write_bytes(content)
