"""Times of single kernels, from the profiler."""

import collections
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

PROGRAMS = 3


def kernels(batch: Callable[[int], float], calls: int) -> dict[str, float]:
    """Microseconds per call by kernel, longest first, of a program with `calls` calls; {} on a CPU."""
    found: collections.Counter[str] = collections.Counter()
    for name, ns in launches(batch):
        found[name] += ns
    return {name: 1e-3 * ns / (PROGRAMS * calls) for name, ns in found.most_common()}


def launches(batch: Callable[[int], float]) -> Iterator[tuple[str, Any]]:
    """Kernel and nanoseconds of every launch of `PROGRAMS` programs; none on a CPU."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            batch(PROGRAMS)
        for file in Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                if not plane.name.startswith("/device:"):
                    continue
                for line in plane.lines:
                    if line.name.startswith(("Stream", "XLA Ops")):
                        for event in line.events:
                            yield event.name, event.duration_ns
