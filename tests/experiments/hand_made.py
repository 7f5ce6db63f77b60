"""Rows of a sweep, for tests of experiments."""

from typing import Any

from jaxzoo.sweep.results import Row


def row(accuracy: float | None, metrics: dict[str, float] | None = None, **point: Any) -> Row:
    """Returns the row of a finished run; with `accuracy=None`, of a diverged one. The id lists the coordinates."""
    found = {} if accuracy is None else {"valid/accuracy": accuracy, **(metrics or {})}
    status = "diverged" if accuracy is None else "finished"
    name = "-".join(map(str, point.values()))
    return {"point": point, "id": name, "status": status, "metrics": found, "state_bytes": 100}
