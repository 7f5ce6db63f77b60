"""Which validations of a run were the best, by one metric."""

import math
from collections.abc import Collection, Sequence

from jaxzoo.train.metrics import Row

HIGHER_IS_BETTER = "valid/accuracy"
"""Beginning of the names of metrics of which more is better; of all others (loss, bits per byte, perplexity) less."""


def best_steps(rows: Sequence[Row], metric: str, among: Collection[int] | None = None) -> list[int]:
    """The steps that were validated, the best first; of two that are equal the earlier one.

    Args:
      rows: metrics of the run.
      metric: the one that counts; steps where it is not finite are left out.
      among: the steps that are asked for; None: all.
    """
    sign = -1.0 if metric.startswith(HIGHER_IS_BETTER) else 1.0
    scores = {int(row["step"]): sign * row[metric] for row in rows if math.isfinite(row.get(metric, math.nan))}
    return sorted((s for s in scores if among is None or s in among), key=lambda step: (scores[step], step))
