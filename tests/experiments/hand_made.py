"""Rows of a sweep and scores of untrained models, for tests of experiments."""

from collections.abc import Mapping
from typing import Any

import jax

from jaxzoo.sweep.results import Row
from jaxzoo.train.config import RunConfig
from jaxzoo.train.session import Session


def row(accuracy: float | None, metrics: dict[str, float] | None = None, **point: Any) -> Row:
    """Returns the row of a finished run; with `accuracy=None`, of a diverged one. The id lists the coordinates."""
    found = {} if accuracy is None else {"valid/accuracy": accuracy, **(metrics or {})}
    status = "diverged" if accuracy is None else "finished"
    name = "-".join(map(str, point.values()))
    return {"point": point, "id": name, "status": status, "metrics": found, "state_bytes": 100}


def answers(config: RunConfig, asked: Mapping[str, RunConfig]) -> dict[str, dict[str, float]]:
    """Returns the untrained model's validation metrics: its own under the empty name, then those of `asked`."""
    session = Session(config)
    with jax.set_mesh(session.mesh):
        variables = jax.device_get(session.init_state().variables)
        return {name: Session(other).evaluate(variables) for name, other in {"": config, **asked}.items()}
