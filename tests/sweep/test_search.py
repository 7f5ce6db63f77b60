"""The search of learning rates with one seed, before the best run with all."""

import dataclasses

from jaxzoo.sweep.directory import SweepDirectory
from jaxzoo.sweep.plan import expected
from jaxzoo.sweep.sweep import Sweep
from tests.sweep.small import open_small


def finish(sweep, accuracy, **where):
    """Writes results of the runs at some coordinates."""
    for point, task in sweep.points:
        if where.items() <= point.items():
            facts = {"seconds": 1.0, "cpu_seconds": 1.0, "machine": "m", "date": "d", "commit": None, "versions": {}}
            metrics = {} if accuracy is None else {"valid/accuracy": accuracy}
            status = "diverged" if accuracy is None else "finished"
            sweep.directory.write_result(task.id, {"id": task.id, "status": status, "metrics": metrics, **facts})


def test_the_best_rates_run_with_all_seeds(tmp_path):
    """Kills: seeds of a rate that has lost, a choice before all rates have run, a place that waits for another, a rate
    that diverged and is chosen."""
    opened = open_small(tmp_path, RATES="(1e-3, 1e-2, 1e-1)", SEEDS="(0, 1, 2)")
    sweep = Sweep(opened.experiment, dataclasses.replace(opened.scale, all_seeds=1), SweepDirectory(tmp_path / "out"))
    points = {task.id: point for point, task in sweep.points}

    def left():
        """Model, rate and seed of the runs to make now, and how many wait."""
        now, later = sweep.left()
        return [tuple(points[task.id].values()) for task in now], len(later)

    first = [(model, rate, 0) for model in ("attention", "convolution") for rate in (1e-3, 1e-2, 1e-1)]
    assert left() == (first, 12)
    assert sweep.scale.n_runs == len(expected(sweep)) == 2 * (3 + 2)
    finish(sweep, 0.5, model="attention", learning_rate=1e-3, seed=0)
    finish(sweep, None, model="attention", learning_rate=1e-2, seed=0)
    assert left() == (first[2:], 12)
    finish(sweep, 0.7, model="attention", learning_rate=1e-1, seed=0)
    assert left() == ([("attention", 1e-1, 1), ("attention", 1e-1, 2), *first[3:]], 6)
    finish(sweep, 0.9, model="attention", learning_rate=1e-1)
    finish(sweep, 0.2, model="convolution")
    assert left() == ([], 0)
