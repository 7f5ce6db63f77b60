"""CAT, Figure 4: what is computed, its claims on rows made by hand, and its picture."""

from typing import Any

import pytest

from experiments.cat_figure4 import draw, experiment
from experiments.landmarks import BOUND, HIGH, LOW, band, critical_dimensions, sufficient_dimension
from jaxzoo.sweep import Measurement, Results
from tests.experiments.hand_made import curves, distinct_runs, row, verdict

pytestmark = pytest.mark.full

SIZES = (16, 64, 256)


def run(size, dimension, *, smoothing="mean", query_dim=0, bound=None, low=None):
    metrics = {LOW: low or dimension / 2, HIGH: dimension, BOUND: bound or 1.2 * dimension}
    return {**row(0.0, smoothing=smoothing, query_dim=query_dim, block_size=size), "metrics": metrics}


@pytest.mark.full
@pytest.mark.parametrize("name", experiment.scales)
def test_every_point_is_computed_once(name):
    """Kills: a size, filter or space of queries that the function does not get."""
    distinct_runs(experiment.scales[name]())


def test_the_papers_scale():
    """Kills: another context than a million tokens, a space of queries under exponential smoothing."""
    scale = experiment.scales["paper"]()
    assert len(scale.points) == 7 * (2 + 3)
    for point in scale.points:
        asked = scale.config(point)
        assert isinstance(asked, Measurement)
        assert dict(asked.arguments) == {"length": 1_048_576, "draws": 1000, **point}
        assert point["smoothing"] == "mean" or point["query_dim"] == 0


def test_a_band_is_quantiles_of_critical_dimensions():
    """Kills: a band of another filter or space of queries, a success that falls with d."""
    where: Any = {"length": 1000, "draws": 200}
    found = band(block_size=8, smoothing="mean", query_dim=0, **where)
    critical = critical_dimensions(200, n_blocks=125, block_size=8)
    assert (critical < found[LOW]).mean() == pytest.approx(0.1, abs=0.006)
    assert (critical < found[HIGH]).mean() == pytest.approx(0.5, abs=0.006)
    for smoothing, dim in (("mean", 0), ("exponential", 0), ("mean", 3)):
        each = band(block_size=32, smoothing=smoothing, query_dim=dim, **where)
        assert each[LOW] < each[HIGH] < each[BOUND]
        sizes = {"n_blocks": 32, "block_size": 32, "query_dim": dim, "smoothing": smoothing}
        assert each[BOUND] == sufficient_dimension(0.0, **sizes)


def test_too_few_blocks_are_refused():
    """Kills a simulation in which nothing competes."""
    with pytest.raises(ValueError, match="block_size=32 must be at most a third of length=64"):
        band(length=64, block_size=32, smoothing="mean", query_dim=0, draws=10)


def test_linear():
    """Kills: a growth of d itself, in which the largest block decides, or of another filter."""
    curved = [run(size, size**2, smoothing="exponential") for size in SIZES]
    found = verdict(experiment, "linear", [run(size, 20 * size**0.9) for size in SIZES] + curved)
    assert found.verdict == "held"
    assert found.numbers == "d grows as B^0.90"
    assert verdict(experiment, "linear", [run(size, 20 * size**0.5) for size in SIZES]).verdict == "not held"
    assert verdict(experiment, "linear", [*curved, run(16, 20)]).verdict == "not tested"


def test_accurate():
    """Kills: a bound below what it bounds, one that is far off at a single size."""
    rows = [run(16, 100, bound=100), run(64, 100, bound=140)]
    assert verdict(experiment, "accurate", rows).numbers == "the bound at t = 0 is 1.00 to 1.40 of the d at 50 %"
    assert verdict(experiment, "accurate", rows).verdict == "held"
    assert verdict(experiment, "accurate", [*rows, run(256, 100, bound=99)]).verdict == "not held"
    assert verdict(experiment, "accurate", [*rows, run(256, 100, bound=201)]).verdict == "not held"
    assert verdict(experiment, "accurate", [run(16, 10, query_dim=4)]).verdict == "not tested"


def test_more_queries():
    """Kills: spaces that are compared at one size of a block, or in the order of the rows."""
    rows = [run(size, size * (10 + dim), query_dim=dim) for dim in (16, 0, 4) for size in SIZES]
    found = verdict(experiment, "queries", rows)
    assert found.verdict == "held"
    assert found.numbers == "at B = 256: 2560 for one query, 3584 for 4 dimensions, 6656 for 16 dimensions"
    lower = [run(size, 16 * 10 if size == 16 else 1e6, query_dim=64) for size in SIZES]
    assert verdict(experiment, "queries", rows + lower).verdict == "not held"
    assert verdict(experiment, "queries", [run(size, size) for size in SIZES]).verdict == "not tested"


def test_smoothing():
    """Kills: a factor that must be 1, one that may grow with the block, a bound of the other filter."""
    rows = [run(size, 10 * size) for size in SIZES]
    alike = [run(size, 40 * size, smoothing="exponential", bound=900 * size) for size in SIZES]
    assert verdict(experiment, "smoothing", rows + alike).numbers == "4.00 to 4.00 times the d of the mean"
    assert verdict(experiment, "smoothing", rows + alike).verdict == "held"
    assert verdict(experiment, "enough", rows + alike).verdict == "held"
    steep = [run(size, size**2, smoothing="exponential", bound=20) for size in SIZES]
    assert verdict(experiment, "smoothing", rows + steep).verdict == "not held"
    assert verdict(experiment, "enough", rows + steep).verdict == "not held"
    assert verdict(experiment, "smoothing", rows).verdict == verdict(experiment, "enough", rows).verdict == "not tested"


def test_the_picture():
    """Kills: panels that are exchanged, sizes out of order, a curve without its bound."""
    rows = [run(64, 40), run(16, 10), run(16, 80, smoothing="exponential"), run(16, 30, query_dim=4)]
    left, right = (curves(panel) for panel in draw(Results(rows)).axes)
    assert left["mean: 50 %"] == right["mean: 50 %"] == ([16, 64], [10, 40])
    assert left["exponential smoothing: 50 %"] == ([16], [80])
    assert right["all queries of 4 dimensions: 50 %"] == ([16], [30])
    assert len(draw(Results(rows)).axes[0].lines) == 5
