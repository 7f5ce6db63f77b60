"""Report of the recall slices of some models: JSON, tables and figure (after Zoology's Figure 1) in one directory."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.config.json_files import read_json
from jaxzoo.evals.gap_share import GapShare, gap_share, share_interval
from jaxzoo.evals.recall_slices import (
    ALL,
    DISTANCE_EDGES,
    FREQUENCY_EDGES,
    HITS,
    REPEATS,
    MeasuredModel,
    SliceScore,
    bin_names,
)
from jaxzoo.utils.figure import LINES, Axes, add_legend, bound_style, panels, save, series_style
from jaxzoo.utils.text_table import markdown_table
from jaxzoo.utils.whole_files import unfinished, write_whole

FORMAT = "jaxzoo recall slices 1"
"""Format of `recall.json`, which identifies a directory of reports."""
EXAMPLES = "examples.png"
"""Picture of `jaxzoo.evals.recall_examples`, if asked for."""
FILES = ("recall.json", "table.md", "recall.png", EXAMPLES)
LONGEST_TICK = 7
"""Longest name of a bin on an axis; longer ones are shortened, as `1,000 +`."""


class RecallReport(NamedTuple):
    """Models measured on the same tokens."""

    models: Sequence[MeasuredModel]
    """At least one; the baseline, if any, is the last."""
    has_baseline: bool
    at_most: int | None
    """Largest number of occurrences in training of a rare bigram; None: unknown training data."""
    digest: str
    """SHA-256 of the validation tokens."""

    @property
    def hits(self) -> str:
        return REPEATS if self.at_most is None else HITS

    def shares(self) -> dict[str, GapShare]:
        """Share of the gap to the baseline of each other model."""
        if not self.has_baseline:
            return {}
        *models, baseline = self.models
        found = {}
        for model in models:
            ours, theirs = ((m.sections.slices[ALL], m.sections.slices[self.hits]) for m in (model, baseline))
            share = gap_share(ours, theirs, hits=self.hits)
            if share.formula is not None and model.windows is not None and baseline.windows is not None:
                share = share._replace(interval=share_interval(model.windows, baseline.windows))
            found[model.name] = share
        return found

    def to_json(self) -> dict[str, Any]:
        """Content of `recall.json`; equal for equal measurements."""
        shares = self.shares()
        return {
            "format": FORMAT,
            "at_most": self.at_most,
            "validation": {"tokens": self.models[0].sections.slices[ALL].tokens, "sha256": self.digest},
            "baseline": self.models[-1].name if self.has_baseline else None,
            "models": [
                {
                    "name": model.name,
                    "step": model.step,
                    "parameters": model.n_parameters,
                    **{part: _scores(scores) for part, scores in model.sections._asdict().items()},
                    **({"share_of_gap": shares[model.name]._asdict()} if model.name in shares else {}),
                }
                for model in self.models
            ],
        }

    def markdown(self) -> str:
        """Content of `table.md`, and of the terminal output."""
        n = self.models[0].sections.slices[ALL].tokens
        rare = "nothing is known of training" if self.at_most is None else f"rare: seen at most {self.at_most:,} times"
        parts = [f"Perplexity (nats ± standard error) of {n:,} validation tokens; {rare}"]
        headings = {
            "slices": "slice",
            "repeated_by_frequency": "repeated bigrams, seen in training",
            "others_by_frequency": "other bigrams, seen in training",
            "hits_by_distance": f"{self.hits}, distance",
        }
        sections = [part for part in headings if getattr(self.models[0].sections, part)]
        parts += [self._table(part, headings[part]) for part in sections]
        if self.has_baseline:
            parts.append("\n".join(self._gap(name, share) for name, share in self.shares().items()))
        return "\n\n".join(parts) + "\n"

    def _table(self, part: str, heading: str) -> str:
        columns = [getattr(model.sections, part) for model in self.models]
        names = [model.name for model in self.models]
        differences = [f"{name} - {names[-1]}" for name in names[:-1]] if self.has_baseline else []
        rows = [[heading, "tokens", "share", *names, *differences]]
        for name, first in columns[0].items():
            scores = [column[name] for column in columns]
            nats = [score.nats for score in scores]
            gaps = ["-" if x is None or nats[-1] is None else f"{x - nats[-1]:+.3f}" for x in nats[:-1]]
            cells = [*map(_cell, scores), *(gaps if self.has_baseline else [])]
            rows.append([name, f"{first.tokens:,}", f"{first.share:.2%}", *cells])
        return markdown_table(rows)

    def _gap(self, name: str, share: GapShare) -> str:
        gap = f"Share of the gap of {name} to {self.models[-1].name} due to {self.hits}"
        if share.formula is None:
            return f"{gap}: none can be given ({share.case})."
        both = (
            "" if share.sentence == share.formula else f" by the formula, {share.sentence:.1%} by the sentence below it"
        )
        if share.interval is not None:
            both += f", {share.interval[0]:.1%} to {share.interval[1]:.1%} by a bootstrap of windows"
        return f"{gap}: {share.formula:.1%}{both} ({share.due_to_hits:+.4f} of {share.gap:+.4f} nats; {share.case})."


def check_directory(path: Path) -> None:
    """Raises `ValueError` if a directory holds anything but an earlier report, which it names."""
    if not path.parent.is_dir():
        raise ValueError(f"--out {path}: its directory does not exist")
    if path.exists() and not path.is_dir():
        raise ValueError(f"--out {path} is a file; --slices writes several: name a directory")
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    ours = {*FILES, *(unfinished(path / name, owned=True).name for name in FILES)}
    strangers = [name for name in names if name not in ours]
    if not strangers and not _is_report(path / FILES[0]):
        strangers = [name for name in names if name in FILES]  # a report that was killed early left unfinished files
    if strangers:
        raise ValueError(f"--out {path} holds {strangers[0]!r}, which no report of recall wrote; choose another place")


def write_report(path: Path, report: RecallReport, *, title: str) -> None:
    """Writes `recall.json`, `table.md` and `recall.png`, each whole or not at all, over those of an earlier report.
    Raises `ValueError` as `check_directory`, `OSError` if a file cannot be written."""
    check_directory(path)
    path.mkdir(exist_ok=True)
    first = json.dumps(report.to_json(), indent=1) + "\n"  # identifies the directory as a report
    write_whole(path / FILES[0], first, owned=True)
    write_whole(path / FILES[1], report.markdown(), owned=True)
    draw_recall(report, path / FILES[2], title=title)


def _is_report(path: Path) -> bool:
    try:
        return read_json(path, dict).get("format") == FORMAT
    except (OSError, ValueError):
        return False


def _scores(scores: Mapping[str, SliceScore]) -> dict[str, dict[str, Any]]:
    return {name: {**score._asdict(), "perplexity": score.perplexity} for name, score in scores.items()}


def _cell(score: SliceScore) -> str:
    if score.nats is None or score.perplexity is None:
        return "-"
    error = "" if score.standard_error is None else f" ± {score.standard_error:.3f}"
    return f"{score.perplexity:.4g} ({score.nats:.3f}{error})"


def draw_recall(report: RecallReport, path: Path, *, title: str) -> None:
    """Draws nats by occurrences of the bigram in training (repeated: solid lines, others: dashed), and by distance.
    Bars are standard errors. Without training counts there is only the panel of distances. Raises `OSError` if the file
    cannot be written."""
    models = report.models
    at_most = report.at_most
    columns = 1 if at_most is None else 2
    figure, ((*frequency, distance),) = panels(1, columns, size=(5 * columns, 4.4), title=title)
    for axes in frequency:
        first = models[0].sections
        names = _shown(bin_names(FREQUENCY_EDGES), {**first.repeated_by_frequency, **first.others_by_frequency})
        for i, model in enumerate(models):
            style = series_style(i)
            hollow = {**style, "linestyle": LINES[1], "markerfacecolor": "white"}
            _line(axes, names, model.sections.repeated_by_frequency, style, f"{model.name}, repeated bigrams")
            _line(axes, names, model.sections.others_by_frequency, hollow, f"{model.name}, other bigrams")
        if at_most is not None and (place := _place(at_most)) < len(names):
            axes.axvline(place, **bound_style(1), label=f"seen {at_most:,} times")
        _label(axes, names, "occurrences of the bigram in training")
    names = _shown(bin_names(DISTANCE_EDGES)[1:], models[0].sections.hits_by_distance)
    for i, model in enumerate(models):
        _line(distance, names, model.sections.hits_by_distance, series_style(i), f"{model.name}, repeated bigrams")
    _label(distance, names, f"tokens since the bigram stood last ({report.hits})")
    add_legend(figure)
    save(figure, path)


def _shown(names: list[str], scores: Mapping[str, SliceScore]) -> list[str]:
    """Returns the bins up to the last that holds tokens."""
    return names[: 1 + max((names.index(name) for name in scores), default=-1)]


def _line(axes: Axes, names: list[str], scores: Mapping[str, SliceScore], style: dict[str, Any], label: str) -> None:
    """Draws nats of the bins that hold tokens, each at its index in `names`."""
    found = [(i, scores[name]) for i, name in enumerate(names) if name in scores]
    errors = [score.standard_error or 0.0 for _, score in found]
    nats = [math.nan if score.nats is None else score.nats for _, score in found]
    axes.errorbar([i for i, _ in found], nats, errors, **style, elinewidth=1, capsize=2, label=label)


def _label(axes: Axes, names: list[str], xlabel: str) -> None:
    short = [name if len(name) <= LONGEST_TICK else f"{name.partition('-')[0]} +" for name in names]
    axes.set_xticks(range(len(names)), short, rotation=30, ha="right")
    axes.set(xlabel=xlabel, ylabel="log-perplexity (nats per token)", ylim=(0, None))


def _place(count: int) -> float:
    """Returns the coordinate of a count on the axis of bins, by its logarithm."""
    edges = (0, *FREQUENCY_EDGES)
    i = max(k for k, edge in enumerate(edges) if edge <= count)
    if i < 2 or i + 1 == len(edges):
        return float(i)
    return i - 0.5 + math.log(count / edges[i]) / math.log(edges[i + 1] / edges[i])
