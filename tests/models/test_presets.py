import dataclasses

import pytest

from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    BigBirdConfig,
    GatedShortConvConfig,
    InputDependentConvConfig,
    LinearAttentionConfig,
    NystromFormerConfig,
    RetNetConfig,
    RWKV4ChannelMixConfig,
    RWKV4TimeMixConfig,
    RWKV5TimeMixConfig,
    ScatterBrainConfig,
    SelectiveAttentionConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models import presets
from jaxzoo.models.accounting import count_parameters
from jaxzoo.models.presets import PRESETS, TABLE_6
from tests.pallas_kernels.shared import full, slow

pytestmark = pytest.mark.full


def test_rows_of_the_ablation():
    """Kills an argument that reaches no layer: what each row of Based's Table 6 changes, against its columns."""
    for row in TABLE_6:
        config = presets.based_360m_ablation(**TABLE_6[row])
        linear = [
            layer for layer in config.layers if isinstance(layer, LinearAttentionConfig | TaylorLinearAttentionConfig)
        ]
        windows = {layer.window for layer in config.layers if isinstance(layer, SlidingWindowAttentionConfig)}
        n_conv = sum(isinstance(layer, GatedShortConvConfig) for layer in config.layers)
        features = {layer.papers_state_size(2048) // 1025 for layer in linear}
        printed = {
            "performer-16": {16},
            "cosformer-16": {32},
            "cosformer-64": {128},
            "taylor-32": {561},
            "taylor-24": {325},
            "taylor-8": {45},
            "linear-only": {325},
        }
        assert features == printed.get(row, {153})
        assert windows == {"no-window": set(), "linear-only": set(), "window-128": {128}}.get(row, {64})
        assert n_conv == {"no-convolutions": 0, "linear-only": 0, "no-window": 22}.get(row, 17)
        assert len(linear) == {"no-convolutions": 14, "linear-only": 27}.get(row, 5)
        assert {layer.decay and layer.output_scaling for layer in linear} == {row != "no-decay"}


@pytest.mark.full
def test_the_ablation_without_decay_is_based():
    """Kills a first row that differs in more than the decay; the counts are those of the docstrings."""
    assert presets.based_360m_ablation(decay=False) == presets.based_360m()
    counts = [count_parameters(presets.based_360m_ablation(**TABLE_6[row])) for row in ("linear-only", "no-window")]
    assert counts == [299_695_104, 373_244_928]
    assert count_parameters(presets.based_360m_ablation()) == 362_620_928 + 5 * 1024 * 16


@pytest.mark.full
def test_based_1_3b_with_decay():
    """Kills a decay that reaches no layer, or the windows and convolutions: the released rate, a factor of each head's
    output, and nothing else."""
    plain, decayed = presets.based_1_3b(), presets.based_1_3b(decay=True)
    changed = [(a, b) for a, b in zip(plain.layers, decayed.layers, strict=True) if a != b]
    assert len(changed) == 7
    for a, b in changed:
        assert b == dataclasses.replace(a, decay=True, decay_const=-3.0, output_scaling=True)
    assert count_parameters(decayed) == 1_349_453_056 + 7 * 1792 * 16


def test_where_the_attention_of_hybrids_stands():
    """Kills replacements at the ends of the stack, or side by side."""
    for preset, expected in (
        (presets.zoology_base_conv_attention_166m, [5, 15, 25]),
        (presets.zoology_base_conv_attention_351m, [8, 24, 40]),
    ):
        layers = preset().layers
        assert [i for i, layer in enumerate(layers) if isinstance(layer, AttentionConfig)] == expected
        others = [layer for layer in layers if isinstance(layer, BaseConvConfig)]
        assert {layer.filter for layer in others} == {"short", "implicit"}
        assert not any(layer.filter_decay for layer in others if layer.filter == "implicit")  # Table 9
        assert len(others) == len(layers) - 3


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
    assert windows(presets.mqar_pure_sliding_window(window=8)) == {8}
    assert windows(presets.mqar_pure_sliding_window(window=8, variant="release")) == {9}


def test_based_layer_positions():
    """Kills an off-by-one in the positions of Table 7's layers."""
    layers = presets.based_1_3b().layers
    linear = [i for i, layer in enumerate(layers) if isinstance(layer, TaylorLinearAttentionConfig)]
    sliding = [i for i, layer in enumerate(layers) if isinstance(layer, SlidingWindowAttentionConfig)]
    assert linear == [1, 6, 11, 16, 21, 27, 33]
    assert sliding == [2, 7, 12, 17, 22, 28, 34]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("mqar-based", "mqar-attention") else pytest.mark.full)
        for name in PRESETS
        if name.startswith("mqar-") and name != "mqar-mamba"
    ],
)
def test_mqar_variants(name):
    """Kills a variant that changes the mixers but not the MLP, or not the mixers, and ignored arguments."""
    paper = PRESETS[name](d_model=48, length=96)
    release = PRESETS[name](d_model=48, length=96, variant="release")
    n_layers = 1 if name.endswith("cat") else 2
    for config, mlp, width, form in ((paper, "gelu", 4 * 48, "paper"), (release, "identity", 0, "release")):
        assert (config.d_model, config.max_length, config.n_layers, config.vocab_size) == (48, 96, n_layers, 8192)
        assert (config.mlp, config.hidden_width, config.norm) == (mlp, width, "layer")
        assert {layer.form for layer in config.layers if isinstance(layer, BaseConvConfig)} <= {form}
        positions = name in ("mqar-attention", "mqar-blocked-window", "mqar-pure-sliding-window")
        assert config.max_positions == (96 if positions else None)
    mlps = n_layers * ((48 + 1) * 192 + (192 + 1) * 48)
    assert count_parameters(paper) - count_parameters(release) == mlps - conv_bias_difference(name)


def conv_bias_difference(name: str) -> int:
    """The released BaseConv has no bias on a long filter; Definition 4.1 has one (d = 48). The released Hyena lacks one
    filter a layer, 64 weights and a bias a channel."""
    return {"mqar-base-conv": -48, "mqar-nystromformer": -33, "mqar-hyena": -2 * (64 * 48 + 48)}.get(name, 0)


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


def test_mqar_feature_maps():
    """Kills a map, a width or a variant that does not arrive."""
    preset = presets.mqar_linear_attention
    for variant, n_features, poly_init, std in (("paper", 64, None, 0.02 / 2), ("release", 256, "model", 0.02)):
        performer, poly = (preset(feature_map=name, variant=variant).layers[1] for name in ("performer", "all_poly"))
        assert isinstance(performer, LinearAttentionConfig)
        assert isinstance(poly, LinearAttentionConfig)
        assert (performer.width_of_features, poly.width_of_features) == (n_features, 64)
        assert (poly.poly_init, poly.poly_learned, poly.out_init_std) == (poly_init, True, std)
    cosformer = preset(feature_map="cosformer", d_model=128, length=1024).layers[1]
    assert isinstance(cosformer, LinearAttentionConfig)
    assert (cosformer.feature_dim, cosformer.n_positions, cosformer.n_heads) == (128, 1024, 1)
    assert preset(feature_map="taylor", feature_dim=24).layers[1].width_of_features == 325


def test_mqar_recurrence_is_the_plain_one():
    """Kills gates, norms or positions of the full RetNet in the recurrence of App. H.2.3."""
    layers = presets.mqar_ret_net(chunk_size=8).layers
    plain = RetNetConfig.plain(gamma=31 / 32, d_model=64)
    assert {dataclasses.replace(layer, chunk_size=64, init_std=None, out_init_std=None) for layer in layers} == {plain}
    assert {layer.chunk_size for layer in layers} == {8}


def test_mqar_mamba():
    """Kills a second branch after Mamba, and a state that does not arrive."""
    config = presets.mqar_mamba(d_model=128, length=1024, d_state=24)
    assert (config.mlp, config.norm, config.d_model, config.max_length) == ("none", "rms", 128, 1024)
    assert [layer.d_state for layer in config.layers] == [24, 24]


def test_mqar_h3():
    """Kills a state of a fixed size, and Based's that does not arrive."""
    assert [(layer.d_state, layer.head_dim) for layer in presets.mqar_h3(length=128).layers] == [(128, 2)] * 2
    based = presets.mqar_h3(d_model=256, length=1024, d_state=64, variant="release").layers
    assert [(layer.d_state, layer.out_init_std) for layer in based] == [(64, 0.02)] * 2


def test_hyenas_of_text():
    """Kills a sine frequency or a window that does not arrive, and the filters of the other papers."""
    for frequency in (14.0, 2.0):
        for preset in (presets.zoology_hyena_158m, presets.zoology_hyena_358m):
            (hyena,) = {layer.filter_network for layer in preset(sine_frequency=frequency).layers}
            assert (hyena.sine_frequency, hyena.fast_decay, hyena.slow_decay) == (frequency, 0.3, 1.2)
    layers = presets.zoology_hyena_sliding_window_159m(window=256).layers
    sliding = [i for i, layer in enumerate(layers) if isinstance(layer, SlidingWindowAttentionConfig)]
    assert sliding == [3, 9, 15]
    assert {layers[i].window for i in sliding} == {256}


def test_mqar_hyena():
    """Kills a filter of another length or form."""
    for variant in ("paper", "release"):
        for layer in presets.mqar_hyena(length=96, variant=variant).layers:
            assert (layer.form, layer.filter_length, layer.filter_network.sine_frequency) == (variant, 96, 1.0)


def test_rwkv_knows_its_depth():
    """Kills layers that all start as the first one, and time and channel mixes in the wrong order."""
    layers = presets.zoology_rwkv_169m().layers
    assert [type(layer) for layer in layers] == [RWKV4TimeMixConfig, RWKV4ChannelMixConfig] * 12
    assert [(layer.layer_index, layer.n_layers) for layer in layers[::2]] == [(i, 12) for i in range(12)]
    assert [layer.layer_index for layer in layers[1::2]] == list(range(12))
    assert {layer.projections for layer in layers} == {"release"}
    fifth = presets.rwkv5_362m().layers
    assert [type(layer) for layer in fifth] == [RWKV5TimeMixConfig, RWKV4ChannelMixConfig] * 19
    assert [(layer.layer_index, layer.n_layers) for layer in fifth] == [(i // 2, 19) for i in range(38)]
    assert {layer.hidden_width for layer in fifth[1::2]} == {3584}
    paper, release = presets.mqar_rwkv().layers, presets.mqar_rwkv(variant="release").layers
    assert [(layer.layer_index, layer.n_layers) for layer in paper] == [(0, 2), (1, 2)]
    assert [layer.out_init_std for layer in release] == [0.02, 0.02]


def test_mqar_blocks():
    """Kills blocks of another size, and a look back that is not asked for."""
    for look_back in (False, True):
        layers = presets.mqar_blocked_window(block_size=8, look_back=look_back).layers
        assert [(layer.block_size, layer.look_back, layer.n_heads) for layer in layers] == [(8, look_back, 1)] * 2


def test_multi_head_hyenas():
    """Kills heads that are counted where their channels are, and the sine frequency of the plain Hyena."""
    for as_printed, heads in ((False, 216), (True, 4)):
        layers = presets.zoology_multi_head_hyena_150m(as_printed=as_printed).layers
        assert {(layer.n_heads, layer.filter_network.sine_frequency) for layer in layers} == {(heads, 2.0)}
    layers = presets.mqar_multi_head_hyena(d_model=128, head_dim=8).layers
    assert [(layer.n_heads, layer.head_width, layer.filter_length) for layer in layers] == [(16, 8, 64)] * 2


def test_mqar_big_bird():
    """Kills blocks of another size, and a hybrid in the wrong order."""
    conv, sparse = presets.mqar_big_bird(block_size=16).layers
    assert isinstance(conv, BaseConvConfig)
    assert isinstance(sparse, BigBirdConfig)
    assert (sparse.block_size, sparse.n_heads, sparse.positions) == (16, 1, "none")


def test_mqar_input_dependent_filters():
    """Kills a filter that does not arrive, and fillers that match each other."""
    for name, ignored in (("programmatic", 0), ("autocorrelation", None)):
        conv, mixer = presets.mqar_input_dependent_conv(filter=name).layers
        assert isinstance(conv, BaseConvConfig)
        assert isinstance(mixer, InputDependentConvConfig)
        assert (mixer.filter, mixer.ignored_token) == (name, ignored)


@pytest.mark.parametrize("selection", [full("programmatic"), slow("random"), slow("learned")])
def test_selective_hybrids(selection):
    """Kills a selection that does not arrive, learned scores without parameters, and look-ups in other layers than
    those of full attention."""
    config = presets.zoology_base_conv_selective_162m(selection=selection)
    at = {i: layer for i, layer in enumerate(config.layers) if isinstance(layer, SelectiveAttentionConfig)}
    assert list(at) == [5, 15, 25]
    assert {(layer.selection, layer.n_selected, layer.positions) for layer in at.values()} == {
        (selection, 256, "rotary")
    }
    more = count_parameters(config) - count_parameters(presets.zoology_base_conv_attention_166m())
    assert more == (3 * 852 if selection == "learned" else 0)


def test_mqar_nystromformer():
    """Kills landmarks that do not arrive, and the paper's convolution in the release."""
    for variant, n_taps in (("paper", 33), ("release", 0)):
        mixer = presets.mqar_nystromformer(n_landmarks=16, variant=variant).layers[1]
        assert isinstance(mixer, NystromFormerConfig)
        assert (mixer.n_landmarks, mixer.form, mixer.n_taps, mixer.n_heads) == (16, variant, n_taps, 1)


def test_mqar_scatter_brain():
    """Kills a window or features that do not arrive, and the release's window of one key more."""
    for variant, window in (("paper", 16), ("release", 17)):
        conv, mixer = presets.mqar_scatter_brain(window=16, n_features=32, variant=variant).layers
        assert isinstance(conv, BaseConvConfig)
        assert isinstance(mixer, ScatterBrainConfig)
        assert (mixer.window, mixer.n_features, mixer.n_heads) == (window, 32, 1)


def test_cat_of_text():
    """Kills filters or positions that do not arrive, Pythia's rotation of a whole head, and its frame left out."""
    for positions in ("none", "rotary"):
        for preset, filters in ((presets.cat_370m, "head"), (presets.mh_cat_370m, "mixing")):
            config = preset(positions=positions)
            assert {(m.filters, m.n_taps, m.positions, m.filtered) for m in config.layers} == {
                (filters, 21, positions, ("queries", "keys", "values"))
            }
            attention = {"n_heads": 16, "positions": positions, "rotary_fraction": 0.25}
            plain = AttentionConfig(**attention, qkv_bias=True, out_bias=True)
            frame = dataclasses.replace(config, pattern=(plain,))
            assert frame == presets.pythia_370m(positions=positions)
            assert dataclasses.replace(frame, vocab_size=50277) == presets.pythia_410m(positions=positions)
    config = presets.pythia_410m()
    assert (config.parallel_residual, config.tie_embeddings, config.mlp, config.mlp_bias) == (True, False, "gelu", True)
    assert (config.hidden_width, config.padded_vocab_size, config.layers[0].rotated_channels) == (4096, 50304, 16)
    # Small init and wang init at d = 1024 and 24 layers.
    assert (config.init_std, config.out_std) == (pytest.approx(0.0197642, rel=1e-5), pytest.approx(1 / 384))


def test_cat_of_mqar():
    """Kills two layers, another width of the filters, and positions or a feature map that do not arrive."""
    (cat,) = presets.mqar_cat(d_model=32, positions="rotary").layers
    assert (cat.n_heads, cat.n_taps, cat.filters, cat.positions) == (1, 3, "head", "rotary")
    assert presets.mqar_cat().layers[0].positions == "none"
    (lin_cat,) = presets.mqar_lin_cat(d_model=32, feature_map="relu").layers
    assert (lin_cat.n_taps, lin_cat.feature_map, lin_cat.feature_dim) == (3, "relu", 32)


@pytest.mark.parametrize("preset", [presets.based_360m, lambda variant: presets.mqar_based(variant=variant)])
def test_unknown_variant(preset):
    """Kills a misspelt variant that silently gives the paper's model."""
    with pytest.raises(ValueError, match="variant='released' must be 'paper' or 'release'"):
        preset("released")
