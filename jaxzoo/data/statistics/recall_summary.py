"""Summary of the histograms of repeated n-grams, as JSON and as a table, with power laws (Zoology App. D)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64, Integer

KINDS = ("all", "content")
"""All n-grams, those with an end-of-text token too; and those without stop words, punctuation and end-of-text."""
NEAR = 100
"""Tokens within which the paper finds most of the repeats."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
TOGETHER = "all subsets"
_BINS = 40
_STEEPEST = 50.0
"""Exponents are searched in [-50, 50]: beyond, all but one distance has a share below 1e-15."""

Json = dict[str, Any]


class Histograms(NamedTuple):
    """Histograms of one subset, kind and n; or of many, along leading axes."""

    distances: Int64[np.ndarray, "... length"]
    """Number of repeated n-grams by the distance to their last occurrence; 0 at distance 0."""
    sequences: Int64[np.ndarray, "... length+1"]
    """Number of sequences by their number of repeated n-grams."""


def summarise(histograms: Mapping[str, Histograms], n: Sequence[int]) -> Json:
    """Summarises each subset and all together.

    Args:
        histograms: of `count_repeats`.
        n: lengths of n-grams.

    Returns:
        `{subset: {"sequences", "tokens", kind: {n: numbers}}}`. The numbers of a kind and n: `repeats`; `share`, of all
        tokens; `per_sequence`, their mean and quantiles; `within_100`, the share of repeats whose last occurrence is
        at most 100 tokens earlier; `power_law`, None if nothing can be fitted; `distances`, the bins of the picture.
    """
    together = Histograms(*(np.sum(each, axis=0) for each in zip(*histograms.values(), strict=True)))
    result: Json = {}
    for name, each in {**histograms, TOGETHER: together}.items():
        sequences = int(each.sequences[0, 0].sum())
        result[name] = {"sequences": sequences, "tokens": sequences * each.distances.shape[-1]}
        for k, kind in enumerate(KINDS):
            result[name][kind] = {
                str(size): _numbers(Histograms(each.distances[k, i], each.sequences[k, i])) for i, size in enumerate(n)
            }
    return result


def _numbers(histograms: Histograms) -> Json:
    by_distance, length = histograms.distances[1:], len(histograms.distances)
    repeats, sequences = int(by_distance.sum()), int(histograms.sequences.sum())
    cumulative = np.cumsum(histograms.sequences)
    quantiles = {f"{q:g}": int(np.searchsorted(cumulative, q * sequences)) for q in QUANTILES}
    law = fit_power_law(by_distance)
    return {
        "repeats": repeats,
        "share": repeats / (sequences * length),
        "per_sequence": {"mean": repeats / sequences, **quantiles},
        "within_100": float(by_distance[:NEAR].sum() / repeats) if repeats else None,
        "power_law": law and {key: float(f"{value:.8g}") for key, value in law._asdict().items()},
        "distances": distance_bins(by_distance),
    }


def distance_bins(by_distance: Int64[np.ndarray, "m"]) -> Json:
    """Bins of equal width in the logarithm of distances 1 .. m: `first`, `last`, mean `share` of all repeats at one."""
    edges = np.unique(np.geomspace(1, len(by_distance) + 1, _BINS + 1).round().astype(np.int64))
    counts = np.add.reduceat(by_distance, edges[:-1] - 1)
    share = counts / np.diff(edges) / max(by_distance.sum(), 1)
    return {"first": edges[:-1].tolist(), "last": (edges[1:] - 1).tolist(), "share": share.tolist()}


def table(summary: Mapping[str, Json], without_sequence: Sequence[str] = ()) -> str:
    """Returns the numbers as Markdown, with the subsets of which there is no sequence."""
    lines = [
        "| n-grams | source | sequences | repeats per sequence: mean | median (quartiles) | of all tokens | within "
        f"{NEAR} tokens | alpha | misfit |",
        "| --- | --- " + "| ---: " * 7 + "|",
    ]
    for kind, label in zip(KINDS, ("all", "without stop words"), strict=True):
        for n in summary[TOGETHER][kind]:
            lines += [_row(f"{n}, {label}", name, each, each[kind][n]) for name, each in summary.items()]
    lines += [
        "",
        "alpha: of the power law p(d) ~ d^-alpha that is fitted to the distances; its standard error supposes that",
        "repeats are independent. misfit: the largest difference between the cumulative shares of distances and law.",
    ]
    if without_sequence:
        lines += ["", f"Too short for one sequence in any shard: {', '.join(without_sequence)}."]
    return "\n".join(lines) + "\n"


def _row(label: str, name: str, subset: Json, numbers: Json) -> str:
    per, law = numbers["per_sequence"], numbers["power_law"]
    cells = [
        label,
        name or "(no name)",
        f"{subset['sequences']:,}",
        f"{per['mean']:,.1f}",
        f"{per['0.5']:,} ({per['0.25']:,} to {per['0.75']:,})",
        f"{numbers['share']:.2%}",
        f"{numbers['within_100']:.1%}" if numbers["repeats"] else "",
        f"{law['alpha']:.3f} ± {law['standard_error']:.3f}" if law else "",
        f"{law['misfit']:.3f}" if law else "",
    ]
    return f"| {' | '.join(cells)} |"


class PowerLaw(NamedTuple):
    """p(d) = d^-alpha / sum_{k=1}^{m} k^-alpha for d = 1 .. m."""

    alpha: float
    standard_error: float
    """Standard error of alpha if counts are independent; those of one text are not, and the true error is larger."""
    misfit: float
    """Largest difference between the cumulative shares of counts and law (Kolmogorov and Smirnov's distance)."""

    def shares(self, m: int) -> Float[np.ndarray, "m"]:
        """p(1) .. p(m)."""
        return _shares(self.alpha, np.log(np.arange(1, m + 1)))


def fit_power_law(counts: Integer[np.ndarray, "m"]) -> PowerLaw | None:
    """Fits the power law under which the counts of distances 1 .. m are most likely, distances truncated to 1 .. m.

    With N counts, mean log-distance L and Z(alpha) = sum_{k=1}^{m} k^-alpha the log-likelihood is
    -N (alpha L + log Z(alpha)). It is concave; at its top the law's own mean of log d is L, and its curvature, N times
    the law's variance of log d, gives the standard error 1 / sqrt(N Var[log d]).

    None if there are no counts, or one distance, the first or the last, has them all.
    """
    n, m = counts.sum(), len(counts)
    log_d = np.log(np.arange(1, m + 1))
    if n == 0 or n in (counts[0], counts[-1]):
        return None
    wanted = float(counts @ log_d / n)
    low, high = -_STEEPEST, _STEEPEST
    while high - low > 1e-10:
        alpha = (low + high) / 2
        if _shares(alpha, log_d) @ log_d > wanted:  # the law reaches too far
            low = alpha
        else:
            high = alpha
    alpha = (low + high) / 2
    shares = _shares(alpha, log_d)
    variance = shares @ (log_d - wanted) ** 2
    misfit = np.abs(np.cumsum(shares) - np.cumsum(counts) / n).max()
    return PowerLaw(alpha, float(1 / np.sqrt(n * variance)), float(misfit))


def _shares(alpha: float, log_d: Float[np.ndarray, "m"]) -> Float[np.ndarray, "m"]:
    exponents = -alpha * log_d
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()
