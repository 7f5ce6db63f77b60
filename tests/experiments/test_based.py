"""Scales of Based's figures, read from the paper and release by hand. Kills: another grid or protocol."""

import pytest

from experiments import based_figure1, based_figure2, based_figure3, based_figure8
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
from jaxzoo.sweep import Measurement

FIGURES = {
    name: module.experiment
    for name, module in {"1": based_figure1, "2": based_figure2, "3": based_figure3, "8": based_figure8}.items()
}


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
