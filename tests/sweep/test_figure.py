"""Marks of figures: which runs they name, in the picture that matplotlib writes."""

import re
from xml.etree import ElementTree

import pytest

from jaxzoo.sweep import Results
from jaxzoo.sweep.figure import Mark, accuracy_label, curve, guessing
from jaxzoo.sweep.page import Label, inline
from jaxzoo.utils.figure import panels, render
from tests.sweep.small_sweep import POINTS, draw, row, rows

SVG = "{http://www.w3.org/2000/svg}"


def marks(svg):
    """Marks of a picture and the (x, y) of their dots; None: nothing is drawn."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        mark = Mark.parse(group.get("id", ""))
        if mark:
            dots = list(group.iter(f"{SVG}use"))
            assert len(dots) <= 1
            found.append((mark, (float(dots[0].get("x")), float(dots[0].get("y"))) if dots else None))
    return found


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


def test_every_mark_names_its_runs_best_first():
    """Kills: runs of the neighbouring mark, a rate that is left out, the first run in place of the best."""
    svg = render(draw(Results(rows()[::-1])), "svg")
    assert len(ElementTree.fromstring(svg).findall(f".//{SVG}g[@clip-path]/{SVG}use")) == 4  # each drawn once
    found = marks(svg)
    assert [mark.runs for mark, _ in found] == [
        ("attention-16-0.01", "attention-16-0.001"),
        ("attention-32-0.001", "attention-32-0.01"),
        ("hyena-16-0.001", "hyena-16-0.01"),
        ("hyena-32-0.01", "hyena-32-0.001"),
    ]
    assert {mark.metric for mark, _ in found} == {"valid/accuracy"}
    places = [place for _, place in found]
    assert places[0][0] == places[2][0] < places[1][0] == places[3][0]
    # 0.9, 1, 0.125 and 0.375, on an axis that grows downwards in the picture
    height = (places[2][1] - places[1][1]) / (1 - 0.125)
    assert [place[1] for place in places] == pytest.approx(
        [places[1][1] + height * (1 - a) for a in (0.9, 1, 0.125, 0.375)], abs=1e-3
    )


def hidden_and_shown():
    """A curve whose marks are: not finite, shown, far above, shown, just below, missing, left of a logarithmic axis."""
    heights = {1: float("nan"), 2: 0.25, 3: 1e6, 4: 0.75, 5: -0.04, 7: 0.5}
    made = [row({"model": "a", "d_model": d, "learning_rate": 1.0}, height) for d, height in heights.items()]
    figure, ((panel,),) = panels(1, 1, size=(4, 3), title="")
    points = [{"model": "a", "d_model": d} for d in range(1, 8)]
    curve(panel, Results(made), x=lambda r: 7 - r["point"]["d_model"], points=points, label="a", series=0)
    panel.set(ylim=(0, 1), xscale="log")
    return render(figure, "svg")


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


def test_marks_that_are_not_drawn_shift_no_other():
    """Kills: the n-th dot of the picture taken for the n-th mark, which NaN, limits and logarithms break."""
    found = {mark.runs: place for mark, place in marks(hidden_and_shown())}
    second, fourth = found["a-2-1.0",], found["a-4-1.0",]
    assert second[0] > fourth[0]
    assert second[1] > fourth[1]
    assert found["a-1-1.0",] is None
    assert ("a-6-1.0",) not in found


@pytest.mark.full
def test_only_marks_that_can_be_seen_react():
    """Kills: a mark outside of its panel that answers to the pointer."""
    asked = []

    def label(mark):
        asked.append(mark.runs[0])
        return Label(len(asked), f"run {asked[-1]}")

    svg = inline(hidden_and_shown().decode(), prefix="p-", title="t", label=label)
    assert re.findall(r'class="mark" data-item="\d+" role="button" aria-label="run ([^"]*)"', svg) == [
        "a-2-1.0",
        "a-4-1.0",
    ]


@pytest.mark.full
def test_ids_of_two_figures_on_a_page_differ():
    """Kills: a clip or marker of another figure, a reference to nothing, a style that reaches the whole page."""
    svg = inline(
        render(draw(Results(rows())), "svg").decode(), prefix="p-", title='a "b" <c>', label=lambda _: Label(0, "")
    )
    root = ElementTree.fromstring(svg)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    used = set(re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', svg))
    assert {a or b for a, b in used} == set(ids)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("p-") for name in ids)
    assert not list(root.iter("style"))
    assert root.get("aria-label") == 'a "b" <c>'


def test_a_mark_is_read_as_it_is_written():
    """Kills: a metric with a colon or a slash that becomes part of the runs; another id taken for a mark."""
    mark = Mark("far:off/valid/accuracy/length=64", ("a", "b"))
    assert Mark.parse(str(mark)) == mark
    assert [Mark.parse(other) for other in ("", "axes_1", "runs", "runs:a", "lines:a:b")] == [None] * 5


def test_a_run_at_two_points_counts_once():
    """Kills: a learning curve that is drawn twice where two points share a run."""
    shared = row(POINTS[0], 0.5), row(POINTS[1], 0.5, id="attention-16-0.001"), row(POINTS[2], 0.75)
    assert Mark.of(shared).runs == ("attention-32-0.001", "attention-16-0.001")


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
