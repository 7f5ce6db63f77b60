"""Hand-made rows of a sweep for the claims and pictures of Based's figures."""

from collections.abc import Mapping
from typing import Any


def row(
    model: str,
    accuracy: float | None,
    state: int | None,
    *,
    parameters: int = 1000,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    **axes: Any,
) -> dict[str, Any]:
    """A row; without accuracy one that diverged, unless it has metrics of its own. The id says what it is."""
    point = {"model": model, "learning_rate": 0.01, **axes}
    scores = {} if accuracy is None else {"valid/accuracy": accuracy, "valid/accuracy/pairs=32": accuracy}
    return {
        "point": point,
        "id": "-".join(map(str, point.values())),
        "status": "diverged" if accuracy is None and metrics is None else "finished",
        "metrics": {**scores, **(metrics or {})},
        "state_bytes": state,
        "n_parameters": parameters,
        "config": config,
    }
