import inspect

import pytest

from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models import presets
from jaxzoo.models.accounting import count_parameters
from jaxzoo.models.layout import fold_layers
from jaxzoo.models.presets import PRESETS


def hand_count(name: str) -> int:
    """Parameters by the papers' tables, added up without the library: kernels, biases, norms, one tied
    table."""
    match name:
        case "based-360m" | "based-1.3b":
            d, n_linear, n_conv = (1024, 5, 17) if name == "based-360m" else (1792, 7, 22)
            linear = 2 * d * 16 * 16 + 2 * d * d
            sliding = 4 * d * d
            conv = (d + 1) * 4 * d + 2 * d * 3 + (2 * d + 1) * d
            layers = 2 * n_linear + n_conv
            return 50264 * d + n_linear * (linear + sliding) + n_conv * conv + layers * (3 * d * 2 * d + 2 * d) + d
        case _:
            rows, d, layers, width = {
                "transformer++-360m": (50272, 1024, 24, 2816),
                "transformer++-1.3b": (50272, 1680, 36, 4608),
                "zoology-attention-73m": (50304, 704, 6, 2048),
                "zoology-attention-125m": (50304, 768, 12, 2048),
                "zoology-attention-360m": (50304, 1024, 24, 2816),
            }[name]
            return rows * d + layers * (4 * d * d + 3 * d * width + 2 * d) + d


@pytest.mark.parametrize(
    ("name", "count", "paper", "tolerance"),
    [
        ("based-360m", 362_620_928, 363e6, 0.5 / 363),
        ("based-1.3b", 1_349_453_056, 1.35e9, 0.005 / 1.35),
        ("transformer++-360m", 359_810_048, 360e6, 0.01),
        ("transformer++-1.3b", 1_327_080_720, 1.33e9, 0.01),
        ("zoology-attention-73m", 73_270_208, 73e6, 0.01),
        ("zoology-attention-125m", 123_587_328, 125e6, 0.012),
        ("zoology-attention-360m", 359_842_816, 360e6, 0.01),
    ],
)
def test_parameter_counts(name, count, paper, tolerance):
    """Kills a preset with a wrong width, depth, bias or padding: the integer is pinned, added up from the
    tables by hand; the papers' number is met to its last digit (Based) or, where they are silent about
    padding, to 1.2 %."""
    parameters = count_parameters(PRESETS[name]())
    assert parameters == count == hand_count(name)
    assert abs(parameters / paper - 1) < tolerance


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_and_folds_to_few_blocks(name):
    """Kills a preset that cannot be built, and layers that differ by accident and so compile one by one."""
    config = PRESETS[name]()
    assert count_parameters(config) > 0
    assert sum(len(fold.period) for fold in fold_layers(config.layers)) <= 12
    assert inspect.getdoc(PRESETS[name])


def test_based_windows_of_paper_and_release():
    """Kills a variant that is accepted and ignored, and a window one token off (the release counts those
    behind)."""

    def windows(config):
        return {m.window for m in config.layers if isinstance(m, SlidingWindowAttentionConfig)}

    assert windows(presets.based_360m()) == {64}
    assert windows(presets.based_1_3b()) == {16}
    assert windows(presets.based_360m("release")) == windows(presets.based_1_3b("release")) == {129}
    assert windows(presets.mqar_sliding_window(window=32)) == {32}
    assert windows(presets.mqar_sliding_window(window=32, variant="release")) == {33}


def test_based_layer_positions():
    """Kills an off-by-one in the positions of Table 7's layers."""
    layers = presets.based_1_3b().layers
    linear = [i for i, layer in enumerate(layers) if isinstance(layer, TaylorLinearAttentionConfig)]
    sliding = [i for i, layer in enumerate(layers) if isinstance(layer, SlidingWindowAttentionConfig)]
    assert linear == [1, 6, 11, 16, 21, 27, 33]
    assert sliding == [2, 7, 12, 17, 22, 28, 34]


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("mqar-")])
def test_mqar_variants(name):
    """Kills a variant that changes the mixers but not the MLP, or not the mixers, and ignored arguments."""
    paper = PRESETS[name](d_model=48, length=96)
    release = PRESETS[name](d_model=48, length=96, variant="release")
    for config, mlp, width, form in ((paper, "gelu", 4 * 48, "paper"), (release, "identity", 0, "release")):
        assert (config.d_model, config.max_length, config.n_layers, config.vocab_size) == (48, 96, 2, 8192)
        assert (config.mlp, config.hidden_width, config.norm) == (mlp, width, "layer")
        assert {layer.form for layer in config.layers if isinstance(layer, BaseConvConfig)} <= {form}
        assert config.max_positions == (96 if name == "mqar-attention" else None)
    mlps = 2 * ((48 + 1) * 192 + (192 + 1) * 48)
    assert count_parameters(paper) - count_parameters(release) == mlps - conv_bias_difference(name)


def conv_bias_difference(name: str) -> int:
    """The released BaseConv has no bias on a long filter; Definition 4.1 has one (d = 48)."""
    return -48 if name == "mqar-base-conv" else 0


def test_mqar_mixers():
    """Kills a hybrid in the wrong order and a feature dimension that does not arrive."""
    conv, linear = presets.mqar_based(feature_dim=8).layers
    assert isinstance(conv, BaseConvConfig)
    assert isinstance(linear, TaylorLinearAttentionConfig)
    assert (conv.filter, conv.n_taps, linear.n_heads, linear.feature_dim) == ("short", 3, 1, 8)
    assert linear.out_init_std == 0.02 / 2  # two layers
    assert presets.mqar_based(variant="release").layers[1].out_init_std == 0.02
    assert presets.mqar_attention(variant="release").layers[1].out_init_std == 0.02 / 2
    short, long = presets.mqar_base_conv().layers
    assert isinstance(short, BaseConvConfig)
    assert isinstance(long, BaseConvConfig)
    assert (short.filter, long.filter, long.n_taps) == ("short", "implicit", 64)
    assert all(isinstance(layer, AttentionConfig) for layer in presets.mqar_attention().layers)


@pytest.mark.parametrize("preset", [presets.based_360m, lambda variant: presets.mqar_based(variant=variant)])
def test_unknown_variant(preset):
    """Kills a misspelt variant that silently gives the paper's model."""
    with pytest.raises(ValueError, match="variant='released' must be 'paper' or 'release'"):
        preset("released")
