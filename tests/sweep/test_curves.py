"""Curves of figures: what they draw of the results."""

import pytest

from jaxzoo.sweep import Results
from jaxzoo.sweep.curves import accuracy_label, curve, guessing
from jaxzoo.utils.figure import panels
from tests.sweep.small_sweep import draw, row, rows


def test_the_guessing_line():
    """Kills: a line of other runs, one line for tasks that differ, places in the order of the rows, a line that lies
    where the metric is on the x-axis."""

    def drawn(lines, **options):
        _, ((panel,),) = panels(1, 1, size=(4, 4), title="")
        guessing(panel, [{"point": {"length": n}, "guess": {"valid/accuracy": y}} for n, y in lines], **options)
        return [list(line.get_ydata()) for line in panel.lines]

    assert drawn([(16, 0.25), (32, 0.25)]) == [[0.25, 0.25]]
    assert drawn([(16, 0.25)], vertical=True) == [[0, 1]]
    assert drawn([(16, 0.25), (32, 0.125)]) == drawn([]) == drawn([], x="length") == []
    assert drawn([(32, 0.125), (16, 0.25), (32, 0.125)], x="length") == [[0.25, 0.125]]
    assert drawn([(32, 0.125), (32, 0.25)], x="length") == []


def test_a_mark_is_the_best_of_its_rates():
    """Kills: runs of the neighbouring mark, a rate that is left out, the first run in place of the best."""
    (panel,) = draw(Results(rows()[::-1])).axes
    drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in panel.lines}
    assert drawn == {"attention": ([16, 32], [0.9, 1.0]), "hyena": ([16, 32], [0.125, 0.375])}


def test_what_has_no_place_is_left_out():
    """Kills: a point without a finished run, or without a place on the axis, that shifts the others."""
    made = [row({"model": "a", "d_model": d, "learning_rate": 1.0}, d / 8) for d in (1, 2, 4)]
    _, ((panel,),) = panels(1, 1, size=(4, 3), title="")
    points = [{"model": "a", "d_model": d} for d in range(1, 5)]
    place = lambda row: None if row["point"]["d_model"] == 2 else 10 * row["point"]["d_model"]  # noqa: E731
    curve(panel, Results(made), x=place, points=points, label="a", series=0)
    (line,) = panel.lines
    assert list(line.get_xdata()) == [10, 40]
    assert list(line.get_ydata()) == [0.125, 0.5]


def test_a_bar_goes_from_the_least_seed_to_the_greatest():
    """Kills: a bar from the mean, or over other runs; a bar of a mark with one seed."""
    made = [row({"model": "a", "d_model": 1, "seed": i}, score) for i, score in enumerate((0.5, 0.25, 0.75))]
    made.append(row({"model": "a", "d_model": 2, "seed": 0}, 1.0))
    _, ((panel,),) = panels(1, 1, size=(4, 3), title="")
    points = [{"model": "a", "d_model": d} for d in (1, 2)]
    curve(panel, Results(made), x="d_model", points=points, label="a", series=0)
    bars = [
        bar.tolist() for found in panel.collections if hasattr(found, "get_segments") for bar in found.get_segments()
    ]
    assert bars == [[[1.0, 0.25], [1.0, 0.75]]]


@pytest.mark.full
def test_the_legend_shows_line_and_marker():
    """Kills: a legend that lost the markers with the curve, or that has an entry a mark."""
    figure = draw(Results(rows()))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["attention", "hyena"]
    assert [line.get_marker() for line in legend.get_lines()] == ["o", "s"]


@pytest.mark.full
def test_the_label_names_the_statistic():
    """Kills a mean of seeds that is called the best run."""
    one, two = ({"point": {"model": "m", "seed": seed}} for seed in (0, 1))
    assert accuracy_label(Results([one, one])) == "accuracy, best run"
    assert accuracy_label(Results([{"point": {"model": "m"}}])) == "accuracy, best run"
    assert accuracy_label(Results([one, two])) == "accuracy, mean of the seeds"
