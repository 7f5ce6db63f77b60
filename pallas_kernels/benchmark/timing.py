"""Median time of repeated batches."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

MAX_PROGRAMS = 10_000
MIN_REPEATS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds per call over `repeats` batches of `calls` calls."""

    median: float
    p10: float
    p90: float
    calls: int
    repeats: int

    @property
    def milliseconds(self) -> dict[str, float]:
        """Entries of a report: median, 10th and 90th percentile."""
        return {"ms": 1e3 * self.median, "ms_p10": 1e3 * self.p10, "ms_p90": 1e3 * self.p90}


def measure(batch: Callable[[int], float], *, calls: int = 1, seconds: float, repeats: int) -> Timing:
    """Times a program of `calls` calls; `batch(n)` runs it n times, waits once and returns the seconds.

    A batch grows until it takes `seconds / repeats`; for longer calls there are fewer repeats, but at least three.
    """
    n, goal = 1, seconds / repeats
    while (elapsed := batch(n)) < goal and n < MAX_PROGRAMS:
        wanted = math.ceil(1.1 * n * goal / max(elapsed, 1e-9))
        n = min(max(n + 1, wanted), 10 * n, MAX_PROGRAMS)
    if n == 1:
        repeats = max(MIN_REPEATS, min(repeats, int(seconds / max(elapsed, 1e-9))))
    per_call = [x / (n * calls) for x in (elapsed, *(batch(n) for _ in range(repeats - 1)))]
    p10, median, p90 = (float(x) for x in np.percentile(per_call, [10, 50, 90]))
    return Timing(median=median, p10=p10, p90=p90, calls=n * calls, repeats=repeats)
