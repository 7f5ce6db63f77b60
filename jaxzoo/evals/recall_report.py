"""Report of the recall slices of some models: JSON, tables and figure in one directory."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.evals.gap_share import GapShare, gap_share, share_interval
from jaxzoo.evals.recall_figure import draw_recall
from jaxzoo.evals.recall_slices import ALL, HITS, REPEATS, MeasuredModel, SliceScore
from jaxzoo.json_files import read_json
from jaxzoo.text_table import markdown_table
from jaxzoo.whole_files import unfinished, write_whole

FORMAT = "jaxzoo recall slices 1"
"""Format of `recall.json`, by which a directory of reports is known."""
FILES = ("recall.json", "table.md", "recall.png")


class RecallReport(NamedTuple):
    """Some models on the same tokens."""

    models: Sequence[MeasuredModel]
    """At least one; the baseline is the last where there is one."""
    has_baseline: bool
    at_most: int | None
    """Occurrences in training up to which a bigram is rare; None: nothing is known of training."""
    digest: str
    """SHA-256 of the validation tokens."""

    @property
    def hits(self) -> str:
        """Name of the hits."""
        return REPEATS if self.at_most is None else HITS

    def shares(self) -> dict[str, GapShare]:
        """The share of the gap to the baseline of each model but itself."""
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
        """The content of `recall.json`: nothing that differs between two equal measurements."""
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
        """The content of `table.md`, and of the screen."""
        return "\n\n".join(self._parts()) + "\n"

    def _parts(self) -> Iterator[str]:
        n = self.models[0].sections.slices[ALL].tokens
        rare = "nothing is known of training" if self.at_most is None else f"rare: seen at most {self.at_most:,} times"
        yield f"Perplexity (nats ± standard error) of {n:,} validation tokens; {rare}"
        headings = {
            "slices": "slice",
            "repeated_by_frequency": "repeated bigrams, seen in training",
            "others_by_frequency": "other bigrams, seen in training",
            "hits_by_distance": f"{self.hits}, distance",
        }
        for part, heading in headings.items():
            if getattr(self.models[0].sections, part):
                yield self._table(part, heading)
        if self.has_baseline:
            yield "\n".join(self._gap(name, share) for name, share in self.shares().items())

    def _table(self, part: str, heading: str) -> str:
        columns = [getattr(model.sections, part) for model in self.models]
        names = [model.name for model in self.models]
        differences = [f"{name} - {names[-1]}" for name in names[:-1]] if self.has_baseline else []
        rows = [[heading, "tokens", "share", *names, *differences]]
        for name, first in columns[0].items():
            scores = [column[name] for column in columns]
            gaps = [_difference(score, scores[-1]) for score in scores[:-1]] if self.has_baseline else []
            rows.append([name, f"{first.tokens:,}", f"{first.share:.2%}", *map(_cell, scores), *gaps])
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
    """Refuses a directory in which something else than an earlier report would be lost or mixed with it.

    Raises:
        ValueError: names what is there.
    """
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

    Raises:
        ValueError: as `check_directory`.
        OSError: it cannot be written.
    """
    check_directory(path)
    path.mkdir(exist_ok=True)
    first = json.dumps(report.to_json(), indent=1) + "\n"  # it says whose directory this is
    write_whole(path / FILES[0], first, owned=True)
    write_whole(path / FILES[1], report.markdown(), owned=True)
    draw_recall(report.models, path / FILES[2], at_most=report.at_most, hits=report.hits, title=title)


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


def _difference(score: SliceScore, baseline: SliceScore) -> str:
    return "-" if score.nats is None or baseline.nats is None else f"{score.nats - baseline.nats:+.3f}"
