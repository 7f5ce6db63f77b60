"""Options and result of compiling a case, and where an output is wrong; imports only NumPy."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


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
