"""Rows of a sweep, written by hand, and what is asked of every experiment file."""

from collections.abc import Mapping
from typing import Any

import jax

from jaxzoo.sweep import Experiment, Results, Scale
from jaxzoo.sweep.claims import Verdict, judge
from jaxzoo.sweep.results import Row
from jaxzoo.sweep.run_spec import RunSpec
from jaxzoo.train.config import RunConfig
from jaxzoo.train.session import Session


def row(accuracy: float | None, metrics: dict[str, float] | None = None, **point: Any) -> Row:
    """A finished run with this accuracy; None: it diverged. Its id is made of its coordinates."""
    found = {} if accuracy is None else {"valid/accuracy": accuracy, **(metrics or {})}
    status = "diverged" if accuracy is None else "finished"
    name = "-".join(map(str, point.values()))
    return {"point": point, "id": name, "status": status, "metrics": found, "state_bytes": 100}


def verdict(experiment: Experiment, name: str, rows: list[Row]) -> Verdict:
    """What rows say of a claim."""
    (claim,) = [claim for claim in experiment.claims if claim.name == name]
    return judge(claim, Results(rows))


def distinct_runs(scale: Scale) -> list[RunSpec]:
    """The runs of all points; each point has its own, and the axes of the others."""
    points = [dict(point) for point in scale.points]
    assert all(list(point) == list(points[0]) for point in points)
    tasks = [RunSpec.of(scale, point) for point in points]
    assert len({task.id for task in tasks}) == len(points) == len({str(point) for point in points})
    return tasks


def curves(panel: Any) -> dict[str, tuple[list[float], list[float]]]:
    """What a panel shows, by label: places and heights."""
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in panel.lines}


def answers(config: RunConfig, asked: Mapping[str, RunConfig]) -> dict[str, dict[str, float]]:
    """What the untrained model of a config says of its own validation (``), and of what it is asked besides."""
    session = Session(config)
    with jax.set_mesh(session.mesh):
        variables = jax.device_get(session.init_state().variables)
        return {name: Session(other).evaluate(variables) for name, other in {"": config, **asked}.items()}
