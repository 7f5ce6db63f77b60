"""Based's figures: the runs of their scales, their claims on hand-made rows, their pictures."""

import pytest

from experiments import based_figure1, based_figure2, based_figure3, based_figure8
from experiments.frontier import by_state, frontier, leads, more_recalls_more
from experiments.window_time import window_time
from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import to_json
from jaxzoo.mixers import (
    BaseConvConfig,
    H3Config,
    LinearAttentionConfig,
    MambaConfig,
    NystromFormerConfig,
    ScatterBrainConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models.accounting import state_bytes
from jaxzoo.sweep import Measurement, Missing, Results
from jaxzoo.sweep.figure import Mark
from jaxzoo.sweep.results import judge
from jaxzoo.sweep.task import Task
from tests.experiments.based_rows import row

FIGURES = {
    name: module.experiment
    for name, module in {"1": based_figure1, "2": based_figure2, "3": based_figure3, "8": based_figure8}.items()
}
SCALES = [(name, scale) for name, figure in FIGURES.items() for scale in figure.scales]


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_point_is_a_run_of_its_own(name, scale):
    """Kills: a point that the models refuse, two points of one run, points that lack an axis."""
    made = FIGURES[name].scales[scale]()
    tasks = [Task.of(made, point) for point in made.points]
    assert len({task.id for task in tasks}) == len(made.points)
    assert len({frozenset(point) for point in made.points}) == 1
    for task in tasks:
        if isinstance(task.config, ExperimentConfig):
            model = task.config.model
            assert len(model.layers) == model.n_layers == 2


def test_smoke_has_few_steps():
    """Kills: a smoke test of minutes."""
    for figure in FIGURES.values():
        smoke = figure.scales["smoke"]()
        runs = [smoke.config(point) for point in smoke.points]
        steps = [run.train.steps for run in runs if isinstance(run, ExperimentConfig)]
        assert 1 <= len(steps) <= 3
        assert max(steps) <= 4


def at(scale, **where):
    """The first config of a scale with these coordinates."""
    return next(
        scale.config(point) for point in scale.points if all(point[axis] == value for axis, value in where.items())
    )


def test_figure_2_of_the_release():
    """Kills: another grid, protocol or layer than in the released configurations, read by hand."""
    scale = FIGURES["2"].scales["release"]()
    rates = sorted({point["learning_rate"] for point in scale.points})
    assert rates == pytest.approx([10**-3, 10**-2.5, 10**-2, 10**-1.5])
    # attention 2, based 3 x 3, windows 8, mamba 3 x 3, hyena 3, h3 3, each at four rates
    assert len(scale.points) == 4 * (2 + 9 + 8 + 9 + 3 + 3)
    based = at(scale, model="Based", d_model=48, feature_dim=24)
    assert based.train.batch_size == 256
    assert based.train.steps == 32 * (100_000 // 256 + 4 * (20_000 // 256))
    assert based.train.stop_at_accuracy == 0.99
    assert based.optimizer.weight_decay == 0.1
    assert based.optimizer.warmup_fraction == 0.0
    assert based.model.mlp == "identity"
    assert based.model.max_positions is None
    conv, taylor = based.model.layers
    assert isinstance(conv, BaseConvConfig)
    assert (conv.n_taps, conv.form) == (3, "release")
    assert isinstance(taylor, TaylorLinearAttentionConfig)
    assert (taylor.feature_dim, taylor.n_heads) == (24, 1)
    asked = [(part.task.length, part.task.n_pairs) for part in based.data.valid]
    assert asked == [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)]
    window = at(scale, model="Sliding window", window=64).model.layers[1]
    assert isinstance(window, SlidingWindowAttentionConfig)
    assert (window.window, window.positions) == (65, "none")
    mamba = at(scale, model="Mamba", d_state=24).model
    assert (mamba.mlp, mamba.norm) == ("none", "rms")
    assert all(isinstance(layer, MambaConfig) for layer in mamba.layers)
    h3 = at(scale, model="H3", d_model=256).model.layers[0]
    assert isinstance(h3, H3Config)
    assert (h3.d_state, h3.head_dim) == (64, 2)


def test_figure_2_of_the_paper():
    """Kills: lengths, pairs or windows other than those that the paper prints (Sec. 3.1, App. E.2)."""
    scale = FIGURES["2"].scales["paper"]()
    window = at(scale, model="Sliding window", window=1024)
    assert {part.task.length for part in window.data.train} == {256}
    assert [part.task.n_pairs for part in window.data.train] == [4, 8, 16, 32, 64]
    assert {part.task.length for part in window.data.valid} == {1024}
    assert [part.task.n_pairs for part in window.data.valid] == [4, 8, 16, 32, 64, 128, 256]
    assert window.model.layers[1].window == 1024
    assert {point["d_model"] for point in scale.points if point["model"] == "Sliding window"} == {128}
    assert {point["d_model"] for point in scale.points if point["model"] == "Based"} == {48, 64, 128}
    # one KV cache of eq. 10, 2 d N numbers, and the two tokens and two positions that the model keeps besides
    attention = at(scale, model="Attention", d_model=64).model
    assert 0 < state_bytes(attention, 1024) - 4 * 2 * 64 * 1024 <= 4 * (2 * 64 + 2)


def test_figures_3_and_8_of_the_release():
    """Kills: a grid or an option that is not that of the released configurations, read by hand."""
    maps = FIGURES["3"].scales["release"]()
    assert len(maps.points) == 4 * 8 * (2 + 6)
    performer = at(maps, model="Performer", d_model=448).model.layers[1]
    assert isinstance(performer, LinearAttentionConfig)
    assert (performer.feature_map, performer.feature_dim, performer.n_features) == ("performer", 448, 256)
    taylor = at(maps, model="Taylor", d_model=512, feature_dim=16).model.layers[1]
    assert isinstance(taylor, TaylorLinearAttentionConfig)
    sparse = FIGURES["8"].scales["release"]()
    # scatterbrain: five windows, with 2 + 3 + 3 numbers of features at the three widths
    assert len(sparse.points) == 4 * (9 + 8 + 5 * (2 + 3 + 3) + 6 + 6)
    scatter = at(sparse, model="ScatterBrain", d_model=128, window=16, n_features=128).model.layers[1]
    assert isinstance(scatter, ScatterBrainConfig)
    assert scatter.window == 17
    nystrom = at(sparse, model="NystromFormer", n_landmarks=512).model.layers[1]
    assert isinstance(nystrom, NystromFormerConfig)
    assert (nystrom.form, nystrom.n_taps) == ("release", 0)


def test_figure_1_combines_its_two_mixers():
    """Kills: a convolution that helps linear attention alone, layers in another order, a time that is trained."""
    scale = FIGURES["1"].scales["laptop"]()
    for model, kinds in {
        "Linear attention": (TaylorLinearAttentionConfig, TaylorLinearAttentionConfig),
        "Sliding window": (SlidingWindowAttentionConfig, SlidingWindowAttentionConfig),
        "Based": (SlidingWindowAttentionConfig, TaylorLinearAttentionConfig),
    }.items():
        assert tuple(map(type, at(scale, panel="recall", model=model).model.layers)) == kinds
    timed = at(scale, panel="time", window=256)
    assert isinstance(timed, Measurement)
    assert timed.arguments["window"] == 256


def test_the_time_of_a_window():
    """Kills: arguments that do not fit, a median below the minimum."""
    times = window_time(window=3, length=8, batch_size=2, head_dim=4, repeats=3)
    assert 0 < times["seconds"] <= times["seconds_median"]


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
    """Kills: pairs at the ceiling that count, a fall that counts as a rise, an empty set that holds."""
    finding = more_recalls_more({"A": {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.995, 5: 1.0}})
    assert finding.numbers == "the larger one recalls more in A 8 of 9 pairs of sizes"
    assert finding.holds
    assert not more_recalls_more({"A": {1: 0.1, 2: 0.3, 3: 0.2}}).holds
    with pytest.raises(Missing):
        more_recalls_more({"A": {1: 1.0, 2: 0.99}})


def verdicts(name, rows):
    """By claim, what rows say of it."""
    results = Results(rows)
    return {claim.name: judge(claim, results).verdict for claim in FIGURES[name].claims}


@pytest.mark.parametrize("name", FIGURES)
def test_no_results_test_no_claim(name):
    """Kills: a claim that holds, or breaks, where nothing was run; a figure that cannot be drawn yet."""
    assert set(verdicts(name, []).values()) == {"not tested"}
    assert FIGURES[name].draw(Results([])).axes


def attention_config():
    return to_json(at(FIGURES["2"].scales["laptop"](), model="Attention", d_model=16))


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


def test_claims_of_figure_2_hold():
    """Kills: a claim that the paper's own picture would break."""
    assert set(verdicts("2", figure_2_rows()).values()) == {"held"}


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"attention": 0.9}, {"attention-perfect"}),
        ({"mamba": (0.05, 0.6)}, {"mamba-best-prior", "mamba-beyond-window"}),
        ({"mamba": (0.55, 0.6)}, {"based-beyond-mamba"}),
        ({"mamba": (0.3, 0.995)}, {"mamba-limited", "based-beyond-mamba"}),
        ({"hyena": 0.85}, {"hyena-below"}),
        ({"based": (0.4, 0.41, 0.98)}, {"based-smooth", "based-beyond-mamba"}),
        ({"based": (0.9, 0.7, 0.5)}, {"tradeoff", "based-smooth"}),
        ({"based": (0.1, 0.2, 0.3, 0.4), "hyena": 0.2}, {"based-expands", "based-beyond-mamba"}),
    ],
)
def test_claims_of_figure_2_break(changes, broken):
    """Kills: a predicate that holds whatever the rows; one that looks at another model."""
    found = verdicts("2", figure_2_rows(**changes))
    assert {name for name, verdict in found.items() if verdict == "not held"} == broken
    assert "not tested" not in found.values()


def test_windows_of_figure_2():
    """Kills: a fall that is not seen, a curve that counts as a line, a perfect window that bends the line."""

    def of(*scores):
        rows = [
            row("Sliding window", score, 100 * w, window=w) for w, score in zip((8, 16, 32, 64), scores, strict=True)
        ]
        return {name: verdict for name, verdict in verdicts("2", rows).items() if name.startswith("window")}

    assert of(0.1, 0.2, 0.4, 1.0) == {"window-falls": "held", "window-linear": "held"}
    assert of(0.1, 0.2, 0.15, 0.8)["window-falls"] == "not held"
    assert of(0.1, 0.8, 0.82, 0.83) == {"window-falls": "held", "window-linear": "not held"}
    assert of(0.1, 0.5, 1.0, 1.0) == {"window-falls": "held", "window-linear": "not tested"}


def figure_3_rows(*, taylor=(0.6, 0.9), relu=0.5, parameters=(1000, 1020), square=0.3):
    dims = [
        row("Taylor", score, size, parameters=n, d_model=16, feature_dim=f)
        for f, score, size, n in zip((8, 16), taylor, (450, 1530), parameters, strict=True)
    ]
    plain = {"d_model": 16, "feature_dim": None}
    others = [("PosELU", 0.5, 300), ("ReLU", relu, 300), ("Square", square, 300)]
    wide = row("PosELU", 0.9, 2000, parameters=4000, d_model=32, feature_dim=None)
    return [*dims, *(row(name, score, size, parameters=900, **plain) for name, score, size in others), wide]


def test_claims_of_figure_3():
    """Kills: a map far below the frontier that sits at it, parameters that are not counted, states for parameters."""
    assert set(verdicts("3", figure_3_rows()).values()) == {"held"}
    assert verdicts("3", figure_3_rows(relu=0.4))["relu-frontier"] == "not held"
    assert verdicts("3", figure_3_rows(parameters=(1000, 1200)))["taylor-state"] == "not held"
    assert verdicts("3", figure_3_rows(taylor=(0.9, 0.6)))["taylor-recall"] == "not held"
    assert verdicts("3", figure_3_rows(square=0.85))["taylor-parameters"] == "not held"
    assert verdicts("3", figure_3_rows()[:1])["taylor-state"] == "not tested"


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


def test_claims_of_figure_8():
    """Kills: BigBird's states, all of one size, that count as a trade; landmarks that are not looked at."""
    held, broken = (verdicts("8", figure_8_rows(falls=falls)) for falls in (False, True))
    assert held.pop("tradeoff-bigbird") == broken.pop("tradeoff-bigbird") == "not tested"
    assert set(held.values()) == {"held"}
    assert set(broken.values()) == {"not held"}


def figure_1_rows(*, linear=0.3, windows=(0.1, 0.4, 0.9), both=(0.5, 0.8, 0.95), seconds=(1.0, 1.1, 1.15, 30.0)):
    recall = {"panel": "recall"}
    rows = [row("Linear attention", linear, 500, window=None, **recall)]
    for w, alone, together in zip((4, 8, 16), windows, both, strict=True):
        rows.append(row("Sliding window", alone, 100 * w + 4, window=w, **recall))
        rows.append(row("Based", together, 100 * w + 504, window=w, **recall))
    times = zip((16, 32, 64, 1024), seconds, strict=True)
    return rows + [row("Sliding window", None, None, window=w, panel="time", metrics={"seconds": s}) for w, s in times]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, set()),
        ({"linear": 0.6}, {"linear-struggles", "complement"}),
        ({"windows": (0.6, 0.7, 0.9)}, {"window-limits", "complement"}),
        ({"both": (0.5, 0.6, 0.7)}, {"complement"}),
        ({"seconds": (1.0, 2.0, 4.0, 64.0)}, {"time-not-linear", "small-windows-alike"}),
    ],
)
def test_claims_of_figure_1(changes, broken):
    """Kills: times that count as recall, a line that is found bent, a combination that need not win."""
    found = verdicts("1", figure_1_rows(**changes))
    assert {name for name, verdict in found.items() if verdict == "not held"} == broken
    assert "not tested" not in found.values()


ROWS = {"1": figure_1_rows, "2": figure_2_rows, "3": figure_3_rows, "8": figure_8_rows}


@pytest.mark.parametrize("name", ROWS)
def test_the_picture_has_its_curves(name):
    """Kills: a model that is not drawn, marks in the wrong place or without their runs."""
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
        "3": {(i, name) for i in (0, 1) for name in ("Taylor", "PosELU", "ReLU", "Square")},
        "8": {(0, name) for name in ("Based", "Sliding window", "ScatterBrain", "BigBird")} | {(1, "NystromFormer")},
    }
    assert set(lines) == drawn[name]
    runs = [Mark.parse(str(dots.get_gid())) for panel in figure.axes for dots in panel.collections]
    assert all(runs)
    assert len(runs) == sum(len(line.get_xdata()) for line in lines.values())
    if name == "3":
        assert list(lines[1, "Taylor"].get_xdata()) == [1000, 1020]
        assert list(lines[0, "Taylor"].get_ydata()) == [0.6, 0.9]
    if name == "2":
        assert list(lines[0, "Sliding window"].get_xdata()) == [200, 500, 1590]
    if name == "8":
        assert list(lines[0, "BigBird"].get_ydata()) == [0.6], "all blocks have one state: the best of them"
