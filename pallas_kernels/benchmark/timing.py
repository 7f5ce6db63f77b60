"""Median time of repeated batches; times of single kernels, from the profiler."""

import collections
import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
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

    A batch grows until it takes `seconds / repeats`; longer calls have fewer repeats, but at least three.
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


TRACED = 3


def kernels(batch: Callable[[int], float], calls: int) -> dict[str, float]:
    """Microseconds per call by kernel, longest first, of a program with `calls` calls; {} on a CPU."""
    found: collections.Counter[str] = collections.Counter()
    for name, ns in launches(batch):
        found[name] += ns
    return {name: 1e-3 * ns / (TRACED * calls) for name, ns in found.most_common()}


def launches(batch: Callable[[int], float]) -> Iterator[tuple[str, Any]]:
    """Kernel and nanoseconds of every launch of `TRACED` programs; none on a CPU."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            batch(TRACED)
        for file in Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                if not plane.name.startswith("/device:"):
                    continue
                for line in plane.lines:
                    if line.name.startswith(("Stream", "XLA Ops")):
                        for event in line.events:
                            yield event.name, event.duration_ns
