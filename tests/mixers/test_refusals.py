"""Rules between fields of a mixer's config, each refused in one line when the config is made.

Kills: a config that fails late, or not at all. Ranges and choices of single fields are checked by `config.checked`.
"""

import jax.numpy as jnp
import pytest

from jaxzoo import mixers
from jaxzoo.layers.rotary_scaling import RotaryScaling
from jaxzoo.models import LanguageModelConfig
from tests.mixers.moved import quick_rngs
from tests.mixers.refused import assert_refused

HEADS = ({"n_heads": 5}, "d_model=12 must be divisible by n_heads=5")
DELTAS = ({"dt_min": 0.2}, "dt_max=0.1 must be at least dt_min=0.2")
NO_ALIBI = ({"positions": "alibi"}, "positions='alibi' must be one of 'none', 'rotary'")
ALL_HEADS = ({"n_heads": 4, "n_kv_heads": 2}, "n_kv_heads=2 must be n_heads=4; or None")
REFUSED = {
    "Attention": [
        HEADS,
        ({"n_heads": 6, "n_kv_heads": 4}, "n_kv_heads=4 must divide n_heads=6"),
        ({"head_dim": 5, "positions": "rotary"}, "rotary_fraction=1.0 times head_dim=5 must be an even"),
        ({"positions": "xpos", "xpos_scale_base": 9}, "xpos_scale_base=9.* must be at least 16"),
        (
            {"positions": "xpos", "rotary_scaling": RotaryScaling(kind="yarn")},
            "rotary_scaling.kind='yarn', which",
        ),
    ],
    "BaseConv": [({"emb_dim": 4}, "emb_dim=4 must be odd and at least 3")],
    "BigBird": [NO_ALIBI],
    "BlockedWindowAttention": [NO_ALIBI],
    "ConvolutionAugmentedAttention": [
        HEADS,
        ({"positions": "alibi"}, "positions='alibi' must be 'none', 'rotary' or 'xpos'"),
        ({"normalize": True, "filters": "mixing"}, "normalize=True needs filters='head'"),
    ],
    "DeltaNet": [
        ({"n_heads": 5}, "key_width=None gives 12 channels, which must be a multiple of 5 heads"),
        ({"n_heads": 2, "value_width": 7}, "value_width=7 gives 7 channels"),
        ({"n_heads": 2, "n_value_heads": 3}, "n_value_heads=3 must be a multiple of n_heads=2"),
    ],
    "GatedLinearAttention": [
        ({"n_heads": 5}, "key_width=None gives 6 channels, which must be a positive multiple of n_heads=5"),
        ({"n_heads": 2, "value_width": 7}, "value_width=7 gives 7 channels"),
    ],
    "GatedShortConv": [({"expansion": 3}, "expansion=3 must be even; it counts both")],
    "H3": [
        ({"head_dim": 5}, "d_model=12 must be divisible by head_dim=5"),
        ({"d_state": 7}, "d_state=7 must be even"),
        DELTAS,
    ],
    "HGRN2": [({"layer_index": 3, "n_layers": 3}, "layer_index=3 must be below n_layers=3")],
    "Hyena": [({"filter_network": 3}, "filter_network=3 must be a HyenaFilterConfig")],
    "InputDependentConv": [({"correlate": "projection"}, "correlate='projection' needs taps='correlations'")],
    "KimiDeltaAttention": [({"lower_bound": 0.5}, "lower_bound=0.5 must be below 0, or None")],
    "LandmarkCAT": [({"rho": 0.5, "smoothing": "mean"}, "rho=0.5 needs smoothing='exponential'"), NO_ALIBI],
    "LinCAT": [HEADS, ({"n_features": 3}, "n_features=3 is read by feature_map='performer'")],
    "LinearAttention": [
        HEADS,
        ({"n_features": 3}, "n_features=3 is read by feature_map='performer' and 'all_poly' only; leave it at None"),
        ({"feature_map": "relu", "mirrored": True}, "mirrored=True is read by feature_map='exp' and 'softmax' only"),
        ({"poly_init": "signs"}, "poly_init='signs' is read by feature_map='all_poly' only; leave it at None"),
        ({"poly_learned": False}, "poly_learned=False is read by feature_map='all_poly' only; leave it at True"),
        ({"decay": True, "causal": False}, "decay=True needs causal=True"),
        ({"feature_map": "relu", "n_positions": 3}, "n_positions=3 is read by feature_map='cosformer' only"),
    ],
    "LiquidS4": [({"d_state": 7}, "d_state=7 must be even"), DELTAS],
    "Mamba": [DELTAS],
    "Mamba2": [
        ({"head_dim": 5}, r"head_dim=5 must divide expand \* d_model=24"),
        ({"head_dim": 8, "n_groups": 2}, "n_groups=2 must divide the 3 heads"),
        ({"n_levels": 1}, "n_levels=1 must be 0 or at least 2"),
        ({"dt_limit": (1.0, 0.5)}, r"dt_limit=\(1.0, 0.5\) must be two bounds"),
    ],
    "MultiHeadHyena": [HEADS],
    "NystromFormer": [({"n_taps": 4}, "n_taps=4 must be odd; or 0, for no convolution"), ALL_HEADS, NO_ALIBI],
    "RGLRU": [({"n_heads": 5}, "inner_width=None gives 12 channels, which must be a multiple of n_heads=5")],
    "RWKV4ChannelMix": [({"layer_index": 3, "n_layers": 3}, "layer_index=3 must be below n_layers=3")],
    "RWKV4TimeMix": [({"layer_index": 3, "n_layers": 3}, "layer_index=3 must be below n_layers=3")],
    "RWKV5TimeMix": [
        HEADS,
        ({"n_heads": 2, "value_width": 7}, "value_width=7 must be divisible by n_heads=2"),
        ({"layer_index": 1}, "layer_index=1 must be below n_layers=1"),
    ],
    "RWKV6TimeMix": [({"n_heads": 2, "value_width": 9}, "value_width=9 gives 9 channels, which must be a multiple of")],
    "RWKV7TimeMix": [HEADS],
    "RetNet": [
        HEADS,
        ({"n_heads": 2, "value_width": 7}, "value_width=7 must be divisible by n_heads=2"),
        ({"n_heads": 4}, "positions='rotary' needs an even d_model / n_heads=3"),
        ({"output_projection": False, "value_width": 24}, "output_projection=False needs value_width=24 to be d_model"),
    ],
    "ScatterBrain": [({"n_features": 5}, "n_features=5 must be even with paired=True"), ALL_HEADS, NO_ALIBI],
    "SelectiveAttention": [
        ({"selection": "random", "form": "release"}, "form='release' must be 'paper' with selection='random'"),
        NO_ALIBI,
    ],
    "SlidingWindowAttention": [NO_ALIBI],
    "TaylorLinearAttention": [HEADS, ({"n_heads": 4, "n_kv_heads": 3}, "n_kv_heads=3 must divide n_heads=4")],
    "WindowedLinearAttention": [
        ({"window": 0, "feature_map": "none"}, "window=0 must be positive"),
        ({"n_heads": 6, "feature_dim": 5}, "feature_dim=5 must be at most the 2 channels"),
        (
            {"positions": "xpos", "feature_dim": 4},
            "positions='xpos' must be 'none' or 'rotary' with feature_map='taylor'",
        ),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_rules_between_fields(name):
    config = getattr(mixers, f"{name}Config")
    assert_refused(lambda **fields: config(**{"d_model": 12, **fields}), REFUSED[name])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (mixers.BaseConvConfig(), "d_model=None must be known to build the mixer"),
        (mixers.BaseConvConfig(d_model=4, filter="long"), "n_taps=None must be known for a long filter"),
        (mixers.HyenaConfig(d_model=4), "n_taps=None must be known to build the mixer"),
        (
            mixers.LinearAttentionConfig(d_model=6, feature_map="cosformer"),
            "n_positions=None must be known for",
        ),
    ],
)
def test_sizes_that_only_a_model_knows(config, message):
    """Kills a filter of 0 taps, and a mixer of width 0."""
    with pytest.raises(ValueError, match=message):
        config.build(rngs=quick_rngs())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (mixers.LinearAttentionConfig(d_model=6, causal=False), "causal=False does not stream"),
        (
            mixers.SelectiveAttentionConfig(d_model=6),
            "selection='learned' does not stream; call the mixer",
        ),
    ],
)
def test_mixers_without_a_stream(config, message):
    """Kills a stream of a mixer that sees the future."""
    with pytest.raises(ValueError, match=message):
        config.build(rngs=quick_rngs()).init_state(1, capacity=4)


@pytest.mark.parametrize("config", [mixers.AttentionConfig, mixers.BigBirdConfig, mixers.LandmarkCATConfig])
def test_prompts_longer_than_the_cache(config):
    """Kills a prompt that does not fit and is cut."""
    mixer = config(d_model=12).build(rngs=quick_rngs())
    with pytest.raises(ValueError, match="prefill of attention: t=200 must be at most the"):
        mixer.prefill(jnp.zeros((1, 200, 12)), mixer.init_state(1, capacity=8))


def test_a_first_layer_without_earlier_values():
    """Kills a value residual without values."""
    with pytest.raises(ValueError, match=r"RWKV7TimeMixConfig as layer 0, which needs the values of an earlier layer"):
        LanguageModelConfig(pattern=(mixers.RWKV7TimeMixConfig(layer_index=1, n_layers=2),))
