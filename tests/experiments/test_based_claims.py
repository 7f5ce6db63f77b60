"""Claims and pictures of Based's figures, on rows made by hand."""

import pytest

from experiments import based_figure1, based_figure2, based_figure3, based_figure8
from experiments.frontier import by_state, frontier, leads, more_recalls_more
from jaxzoo.config.config_io import to_json
from jaxzoo.sweep import Missing, Results
from jaxzoo.sweep.claims import judge
from tests.experiments.based_rows import row

FIGURES = {
    name: module.experiment
    for name, module in {"1": based_figure1, "2": based_figure2, "3": based_figure3, "8": based_figure8}.items()
}


def test_frontier_by_hand():
    """Kills: a budget that leaves its own size out, rates that are averaged, models without a state that count,
    budgets beyond what was tried."""
    results = Results(
        [
            row("A", 0.2, 100),
            row("A", 0.4, 100, learning_rate=0.1),
            row("A", 0.3, 200),
            row("B", 0.5, 150),
            row("B", 1.0, None),
        ]
    )
    assert by_state(results, model="A") == {100: 0.4, 200: 0.3}
    assert [frontier(results, budget, model="A") for budget in (99, 100, 200)] == [None, 0.4, 0.4]
    assert leads(results, (100, 150, 200), {"model": "B"}, {"model": "A"}) == pytest.approx({150: 0.1})
    with pytest.raises(Missing, match="model B: no state as large as those of model A"):
        leads(results, (100,), {"model": "B"}, {"model": "A"})


def test_more_recalls_more_by_hand():
    """Kills: pairs at the ceiling that count, a fall that counts as a rise, an empty set that holds, a trend of chance
    gives."""
    finding = more_recalls_more({"A": {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.995, 5: 1.0}})
    assert finding.numbers == "the larger one recalls more in A 8 of 9 pairs of sizes; by chance with p = 0.067"
    assert not finding.holds
    rising = {size: size / 10 for size in range(1, 7)}
    assert more_recalls_more({"A": rising}).holds
    assert not more_recalls_more({"A": {**rising, 1: 0.9}}).holds  # 10 of 15
    with pytest.raises(Missing):
        more_recalls_more({"A": {1: 1.0, 2: 0.99}})
    with pytest.raises(Missing, match="too few sizes"):
        more_recalls_more({"A": {1: 0.1, 2: 0.3, 3: 0.4}})


def verdicts(name, rows):
    """By claim, what rows say of it."""
    results = Results(rows)
    return {claim.name: judge(claim, results).verdict for claim in FIGURES[name].claims}


def test_no_results_test_no_claim():
    """Kills: a claim that holds, or breaks, where nothing was run."""
    for name in FIGURES:
        assert set(verdicts(name, []).values()) == {"not tested"}, name


@pytest.mark.full
@pytest.mark.parametrize("name", FIGURES)
def test_no_results_draw_an_empty_figure(name):
    """Kills: a figure that cannot be drawn yet."""
    assert FIGURES[name].draw(Results([])).axes


def attention_config():
    """Of the first run at the smoke scale, which is attention's."""
    smoke = FIGURES["2"].scales["smoke"]()
    return to_json(smoke.config(smoke.points[0]))


def figure_2_rows(*, mamba=(0.3, 0.6), based=(0.5, 0.65, 0.75, 0.9), hyena=0.1, attention=0.995):
    sizes = {"feature_dim": None, "d_state": None, "window": None}
    small, large = ({**sizes, "window": w} for w in (8, 64))
    return [
        row("Attention", attention, 1600, **sizes, config=attention_config()),
        row("Sliding window", 0.1, 200, **small),
        row("Sliding window", 0.25, 500, **{**sizes, "window": 20}),
        row("Sliding window", 0.8, 1590, **large),
        *(row("Mamba", score, 200 * 2**i, **sizes, d_model=i) for i, score in enumerate(mamba)),
        row("H3", 0.05, 300, **sizes),
        row("Hyena", hyena, 1000, **sizes),
        *(row("Based", score, 200 * 2**i, **sizes, d_model=i) for i, score in enumerate(based)),
    ]


def figure_3_rows(*, taylor=(0.6, 0.9), relu=0.5, parameters=(1000, 1020), square=0.3):
    dims = [
        row("Taylor", score, size, parameters=n, d_model=16, feature_dim=f)
        for f, score, size, n in zip((8, 16), taylor, (450, 1530), parameters, strict=True)
    ]
    plain = {"d_model": 16, "feature_dim": None}
    others = [("PosELU", 0.5, 300), ("ReLU", relu, 300), ("Square", square, 300)]
    wide = row("PosELU", 0.9, 2000, parameters=4000, d_model=32, feature_dim=None)
    return [*dims, *(row(name, score, size, parameters=900, **plain) for name, score, size in others), wide]


def figure_8_rows(*, falls=False):
    scores = (0.6, 0.3) if falls else (0.3, 0.6)
    models = {"Based": "feature_dim", "Sliding window": "window", "ScatterBrain": "n_features"}
    rows = [
        row(model, score, 100 * size, d_model=32, **{axis: size})
        for model, axis in models.items()
        for size, score in zip((8, 16), scores, strict=True)
    ]
    blocks = [row("BigBird", score, 6400, block_size=b) for b, score in zip((2, 4), scores, strict=True)]
    landmarks = [row("NystromFormer", score, None, n_landmarks=n) for n, score in zip((8, 16), scores, strict=True)]
    return rows + blocks + landmarks


def figure_1_rows(*, linear=0.3, windows=(0.1, 0.4, 0.9), both=(0.5, 0.8, 0.95), seconds=(1.0, 1.1, 1.15, 30.0)):
    recall = {"panel": "recall"}
    rows = [row("Linear attention", linear, 500, window=None, **recall)]
    for w, alone, together in zip((4, 8, 16), windows, both, strict=True):
        rows.append(row("Sliding window", alone, 100 * w + 4, window=w, **recall))
        rows.append(row("Based", together, 100 * w + 504, window=w, **recall))
    times = zip((16, 32, 64, 1024), seconds, strict=True)
    return rows + [row("Sliding window", None, None, window=w, panel="time", metrics={"seconds": s}) for w, s in times]


ROWS = {"1": figure_1_rows, "2": figure_2_rows, "3": figure_3_rows, "8": figure_8_rows}


@pytest.mark.full
@pytest.mark.parametrize("name", ROWS)
def test_the_picture_has_its_curves(name):
    """Kills: a model that is not drawn, marks in the wrong place or without their runs, one line through two sizes that
    grow each by itself."""
    figure = FIGURES[name].draw(Results(ROWS[name]()))
    lines = {
        (i, line.get_label()): line
        for i, panel in enumerate(figure.axes)
        for line in panel.lines
        if not str(line.get_label()).startswith("_")
    }
    drawn = {
        "1": {(0, "Sliding window"), (1, "Sliding window"), (1, "Based"), (1, "Linear attention")},
        "2": {(0, name) for name in ("Attention", "Sliding window", "Mamba", "H3", "Hyena", "Based")},
        "3": {(i, f"Taylor, d' = {dim}") for i in (0, 1) for dim in (8, 16)}
        | {(i, name) for i in (0, 1) for name in ("PosELU", "ReLU", "Square")},
        "8": {(0, name) for name in ("Based", "Sliding window", "ScatterBrain", "BigBird")} | {(1, "NystromFormer")},
    }
    assert set(lines) == drawn[name]
    if name == "3":
        taylor = [[lines[i, f"Taylor, d' = {dim}"] for dim in (8, 16)] for i in (0, 1)]
        assert [list(line.get_xdata()) for line in taylor[1]] == [[1000], [1020]]
        assert [list(line.get_ydata()) for line in taylor[0]] == [[0.6], [0.9]]
        assert len({line.get_linestyle() for line in taylor[0]}) == 2
    if name == "2":
        assert list(lines[0, "Sliding window"].get_xdata()) == [200, 500, 1590]
    if name == "8":
        assert list(lines[0, "BigBird"].get_ydata()) == [0.6], "all blocks have one state: the best of them"
