"""CAT, Figure 4: points and bands. Kills: quantiles of another filter."""

from typing import Any

import pytest

from experiments.cat_figure4 import experiment
from experiments.landmarks import BOUND, HIGH, LOW, band, critical_dimensions, sufficient_dimension
from jaxzoo.sweep import Measurement
from tests.experiments.hand_made import row

pytestmark = pytest.mark.full

SIZES = (16, 64, 256)


def run(size, dimension, *, smoothing="mean", query_dim=0, bound=None, low=None):
    metrics = {LOW: low or dimension / 2, HIGH: dimension, BOUND: bound or 1.2 * dimension}
    return {**row(0.0, smoothing=smoothing, query_dim=query_dim, block_size=size), "metrics": metrics}


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
    """Kills: a simulation in which nothing competes."""
    with pytest.raises(ValueError, match="block_size=32 must be at most a third of length=64"):
        band(length=64, block_size=32, smoothing="mean", query_dim=0, draws=10)
