"""Curves of figures. Kills: a curve of other runs."""

from jaxzoo.sweep import Results
from jaxzoo.sweep.curves import curve, guessing
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
