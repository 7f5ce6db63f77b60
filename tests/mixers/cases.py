"""The mixers that the contract suite runs: every registered mixer's `tiny()`, and more settings of some."""

import dataclasses

from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.mixers import (
    MIXERS,
    AttentionConfig,
    BaseConvConfig,
    BigBirdConfig,
    BlockedWindowAttentionConfig,
    ConvolutionAugmentedAttentionConfig,
    GatedShortConvConfig,
    GatedSlotAttentionConfig,
    H3Config,
    HyenaConfig,
    LandmarkCATConfig,
    LightningAttentionConfig,
    LinCATConfig,
    LinearAttentionConfig,
    LiquidS4Config,
    Mamba2Config,
    Mamba3Config,
    MambaConfig,
    MixerConfig,
    MLSTMConfig,
    NystromFormerConfig,
    RetNetConfig,
    ScatterBrainConfig,
    SelectiveAttentionConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
    TTTConfig,
    WindowedLinearAttentionConfig,
)
from jaxzoo.testing.mixer_inputs import ready
from tests.mixers.outside import OUTSIDE

EXTRA = [
    TaylorLinearAttentionConfig(d_model=8, n_heads=4, n_kv_heads=2, feature_dim=2, chunk_size=5, decay=True),
    LinearAttentionConfig(d_model=6, n_heads=2, feature_dim=3, causal=False),
    BaseConvConfig(d_model=5, filter="implicit", form="listing"),
    SelectiveAttentionConfig(d_model=6, n_heads=2, selection="random", probability=0.6),
    Mamba2Config(d_model=6, d_state=3, head_dim=3, n_groups=2, n_taps=3, n_levels=4),
    GatedShortConvConfig.lfm2(d_model=5, n_taps=4),
]
"""Settings that run other code than `tiny()`."""
MORE = [
    BlockedWindowAttentionConfig(d_model=6, n_heads=2, block_size=4),
    BigBirdConfig(d_model=6, n_heads=3, block_size=4, n_window_blocks=1, n_random_blocks=1),
    AttentionConfig(d_model=12, n_heads=6, n_kv_heads=2, positions="alibi"),
    SlidingWindowAttentionConfig(d_model=8, n_heads=4, n_kv_heads=2, window=5),
    LandmarkCATConfig(
        d_model=6, block_size=3, smoothing="implicit", n_retrieved=2, gate="softmax", filter_queries=True
    ),
    AttentionConfig(d_model=8, n_heads=2, positions="xpos", xpos_scale_base=16, rotary_interleaved=True),
    LinearAttentionConfig(d_model=6, n_heads=3, feature_dim=3, feature_map="performer", n_features=7),
    LinearAttentionConfig.rebased(d_model=6, n_heads=2, feature_dim=3, eps=0.1, output_scaling=True),
    WindowedLinearAttentionConfig(d_model=8, n_heads=2, window=0, feature_map="hedgehog", feature_dim=None),
    BaseConvConfig(d_model=5, filter="long", form="release", n_taps=7),
    HyenaConfig(d_model=5, form="release", filter_network=HyenaFilterConfig(emb_dim=3, width=4, sine_frequency=1.0)),
    RetNetConfig.plain(d_model=5, gamma=0.9),
    MambaConfig(d_model=6, d_state=3, dt_rank=2, dt_min=0.1, dt_max=1.0, projected_norm_eps=1e-3),
    H3Config(d_model=4, d_state=10, discretization="zoh", learn_shift_b=False),
    LiquidS4Config(d_model=3, d_state=4, dt_min=0.1, dt_max=1.0, liquid="kb", order=3),
    ScatterBrainConfig(d_model=6, n_heads=3, window=1, n_features=5, paired=False),
    SelectiveAttentionConfig(d_model=8, n_heads=2, n_selected=4, positions="rotary"),
    ConvolutionAugmentedAttentionConfig(d_model=6, n_heads=2, filters="maps"),
    LinCATConfig(d_model=6, n_heads=3, feature_dim=16, feature_map="cosformer", filter_queries=False, n_taps=4),
    AttentionConfig(d_model=6, n_heads=3, positions="none"),
    AttentionConfig(d_model=8, n_heads=2, positions="rotary", rotary_fraction=0.5, qkv_bias=True, out_bias=True),
    SlidingWindowAttentionConfig(d_model=6, n_heads=3, window=2, positions="none"),
    SlidingWindowAttentionConfig(d_model=4, n_heads=1, window=64),
    TaylorLinearAttentionConfig(d_model=6, n_heads=2, feature_dim=3, chunk_size=4),
    TaylorLinearAttentionConfig(d_model=5, feature_dim=4, chunk_size=3, output_scaling=True, normalize=False),
    LinearAttentionConfig(d_model=6, n_heads=2, feature_dim=16, feature_map="relu"),
    LinearAttentionConfig(d_model=5, feature_dim=4, feature_map="identity", normalize=False),
    LinearAttentionConfig(d_model=6, n_heads=2, feature_dim=3, feature_map="all_poly", normalize=False),
    LinearAttentionConfig(d_model=6, n_heads=2, feature_dim=3, feature_map="taylor_full", decay=True),
    BaseConvConfig(d_model=5, filter="short", form="paper"),
    BaseConvConfig(d_model=5, filter="long", form="paper"),
    BaseConvConfig(d_model=5, filter="short", form="release", n_taps=4),
    GatedShortConvConfig(d_model=5, expansion=4, n_taps=2),
    BlockedWindowAttentionConfig(d_model=6, n_heads=2, block_size=64, look_back=True),
    LiquidS4Config(d_model=3, d_state=4, dt_min=0.1, dt_max=1.0, liquid="pb"),
    NystromFormerConfig(d_model=6, n_landmarks=3, n_taps=0, form="release"),
    SelectiveAttentionConfig(d_model=6, n_heads=2, n_selected=3, form="release"),
    ConvolutionAugmentedAttentionConfig(d_model=6, n_heads=3, n_taps=4, filter_queries=False),
    ConvolutionAugmentedAttentionConfig(d_model=6, n_heads=2, normalize=True, filter_values=False, filter_init="delta"),
    MLSTMConfig(d_model=6, n_heads=2, form="7b", key_width=8, value_width=10),
    Mamba3Config(d_model=6, d_state=6, head_dim=3),
    TTTConfig(d_model=8, n_heads=2, mini_batch=4),
    GatedSlotAttentionConfig.abc(d_model=8, n_heads=2, key_width=12, n_slots=5),
    LightningAttentionConfig(d_model=8, n_heads=2, slopes="linear", layer_index=1, n_layers=3),
]
"""Settings that share most of their code with those above; their equations have tests of their own."""


def _label(config: MixerConfig) -> str:
    name = type(config).__name__.removesuffix("Config")
    if config == type(config).tiny():
        return f"{name}-tiny"
    changed = [
        f"{field.name}={getattr(config, field.name)}"
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != field.default and field.name not in ("d_model", "filter_network")
    ]
    return f"{name}-{','.join(changed)}"


_TINY = [cls.tiny() for cls in (*MIXERS.values(), *OUTSIDE)]
CASES = {_label(config): ready(config) for config in [*_TINY, *EXTRA, *MORE]}
TINY = {_label(config) for config in _TINY}
"""Cases that are the `tiny()` of a mixer."""
SLOW = {_label(config) for config in MORE}
"""Cases that run before a release only."""
