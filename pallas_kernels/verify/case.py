"""Interface of a case, its truth, and where an output is wrong; imports only NumPy."""

import collections
import itertools
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from pallas_kernels.child import host_pool

MOST = 6
"""Maximum number of processes that compute truths."""


class Variant(NamedTuple):
    """Options of a run."""

    interpret: bool = False
    """Whether to use Pallas' interpreter, on a CPU."""
    segments: int | None = None
    """Segments of a sequence; None: the kernel's choice."""


class Compiled(NamedTuple):
    """A compiled case."""

    run: Callable[[], Sequence[Any]]
    """Runs the kernels and waits for their outputs."""
    programs: Sequence[str] = ()
    """Hashes of the kernels' lowered programs (`programs.Kernel.program`)."""


class Case(Protocol):
    """One call of one kernel."""

    name: str
    tolerances: dict[str, float]
    """Relative L2 error allowed for each output, by name, in the order of the outputs."""

    def inputs(self, seed: int) -> Any:
        """Random NumPy arrays."""

    def compiled(self, inputs: Any, variant: Variant) -> Compiled:
        """Compiles the kernels and copies the inputs to the device."""
        ...

    def truth(self, inputs: Any) -> list[np.ndarray]:
        """The compared outputs in float64, computed on the host."""
        ...

    def checked(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        """Part of the outputs that `truth` computes."""
        ...


def truths(cases: Sequence[Case], seed: int) -> Generator[list[np.ndarray], None, None]:
    """Yields the outputs of the cases in float64, computed on the host ahead of the running case."""
    count = max(1, min(MOST, (os.cpu_count() or 1) // 2))
    waiting = iter(cases)
    with host_pool(count) as pool:
        ahead = collections.deque(pool.submit(_truth, case, seed) for case in itertools.islice(waiting, 2 * count))
        try:
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(pool.submit(_truth, case, seed) for case in itertools.islice(waiting, 1))
        finally:
            pool.shutdown(cancel_futures=True)


def _truth(case: Case, seed: int) -> list[np.ndarray]:
    return case.truth(case.inputs(seed))


def where_wrong(found: np.ndarray, truth: np.ndarray, tolerance: float) -> dict[str, Any]:
    """First wrong entry, count of NaN, and errors by row modulo 64 and column modulo 8 of (b, t, h, c)."""
    if found.shape != truth.shape:
        return {"shape": list(found.shape), "expected_shape": list(truth.shape)}
    scale = max(float(np.sqrt(np.mean(truth**2))), 1e-30)
    error = np.where(np.isfinite(found), np.abs(found - truth) / scale, np.inf)
    wrong = np.argwhere(error > 8 * tolerance)
    report: dict[str, Any] = {
        "first_wrong": wrong[0].tolist() if len(wrong) else None,
        "wrong": len(wrong),
        "entries": error.size,
        "nan": int(np.isnan(found).sum()),
    }
    if error.ndim == 4:
        capped = np.minimum(error, 1e3)
        for name, axis, period in (("by_row_mod_64", 1, 64), ("by_column_mod_8", 3, 8)):
            lines = np.moveaxis(capped, axis, 0).reshape(error.shape[axis], -1).max(axis=1)
            report[name] = [float(f"{lines[i::period].max():.2g}") for i in range(min(period, len(lines)))]
    return report
