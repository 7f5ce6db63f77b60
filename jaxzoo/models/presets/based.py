"""The language models of Based (Arora et al. 2024): Tables 7, 8 and 13, and the ablations of Table 6."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxzoo.mixers import (
    AttentionConfig,
    GatedLinearAttentionConfig,
    GatedShortConvConfig,
    H3Config,
    LinearAttentionConfig,
    MambaConfig,
    MixerConfig,
    RWKV4ChannelMixConfig,
    RWKV5TimeMixConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.mixers.linear.feature_map import FeatureMap
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import Variant, is_release, neox_mlp_width, rwkv_model, text_hyena, text_model


def based_360m(variant: Variant = "paper") -> LanguageModelConfig:
    """Based, Table 7, column 355M: 362.6M parameters (Table 1: 363m).

    27 layers of width 1024: Taylor linear attention at layers 1, 6, 11, 16, 21, sliding window attention at
    2, 7, 12, 17, 22, gated short convolutions elsewhere; SwiGLU of width 2 d.

    Args:
      variant: the window is 64 tokens in the paper; 129 in the released config (128 back and itself).
    """
    window = 129 if is_release(variant) else 64
    return _based(d_model=1024, n_layers=27, linear=(1, 6, 11, 16, 21), window=window)


def based_1_3b(variant: Variant = "paper", *, decay: bool = False) -> LanguageModelConfig:
    """Based, Table 7, column 1.4B: 1349M parameters (Table 1: 1.35b).

    As `based_360m`, with 36 layers of width 1792 and linear attention at layers 1, 6, 11, 16, 21, 27, 33.

    Args:
      variant: the window is 16 tokens in the paper; 129 in the released config.
      decay: the decay of App. C with output scaling, as in the row of 10B tokens (App. D.4). The paper does not give
        the rate; it is that of the released config of this row (`decay_const: -3`).
    """
    window = 129 if is_release(variant) else 16
    return _based(d_model=1792, n_layers=36, linear=(1, 6, 11, 16, 21, 27, 33), window=window, decay=decay)


def _based(
    *, d_model: int, n_layers: int, linear: tuple[int, ...], window: int, decay: bool = False
) -> LanguageModelConfig:
    pattern: list[MixerConfig] = [GatedShortConvConfig(expansion=4, n_taps=3)] * n_layers
    decayed: dict[str, Any] = {"decay": True, "decay_const": -3.0, "output_scaling": True} if decay else {}
    mixer = TaylorLinearAttentionConfig(n_heads=16, feature_dim=16, **decayed)
    for i in linear:
        pattern[i] = mixer
        pattern[i + 1] = SlidingWindowAttentionConfig(n_heads=16, window=window, positions="rotary")
    return text_model(tuple(pattern), d_model=d_model, n_layers=n_layers, mlp_width=2 * d_model, pad_vocab_multiple=8)


def transformer_pp_360m() -> LanguageModelConfig:
    """Transformer++, Based, Table 8, column 355M: 359.8M parameters (the paper says 360m).

    24 layers of width 1024, 16 heads, rotary positions on half of each head, SwiGLU of width 8/3 d rounded up to a
    multiple of 256 (the table's "MLP width 4" before the factor 2/3), no biases.
    """
    attention = AttentionConfig(n_heads=16, positions="rotary", rotary_fraction=0.5)
    return text_model((attention,), d_model=1024, n_layers=24, pad_vocab_multiple=16)


def transformer_pp_1_3b() -> LanguageModelConfig:
    """Transformer++, Based, Table 8, column 1.4B: 1327M parameters (the paper says 1.33b).

    36 layers of width 1680, 24 heads. Deviation: half of a head is 35 channels, an odd number; here 36 of 70 rotate,
    at the usual frequencies of 36.
    """
    attention = AttentionConfig(n_heads=24, positions="rotary", rotary_fraction=36 / 70)
    return text_model((attention,), d_model=1680, n_layers=36, pad_vocab_multiple=16)


def based_360m_ablation(
    *,
    feature_map: FeatureMap = "taylor",
    feature_dim: int = 16,
    window: int = 64,
    convolutions: bool = True,
    decay: bool = True,
) -> LanguageModelConfig:
    """Row of Based, Table 6: `based_360m` with one change; `TABLE_6` has the arguments of all rows.

    The defaults are the table's first row, with the decay and output scaling of App. C, which the models of Table 1
    lack. The table calls all rows "362M param variants" and prints neither depths nor counts. Our reading keeps 27
    layers: without a window its five layers become convolutions; without convolutions linear attention and windows
    alternate; without both all 27 are linear attention. Rows have 300M to 373M parameters, the first 362.7M.

    Args:
      feature_map: "taylor", "performer" or "cosformer" in the table.
      feature_dim: width of queries and keys; 8, 16, 24 or 32 of taylor, 16 of performer, 16 or 64 of cosformer.
      window: tokens of the sliding windows, 64 or 128; 0: no such layer.
      convolutions: whether there are gated short convolutions.
      decay: a fixed decay for each head, and a learned scale of its output.
    """
    heads = {"n_heads": 16, "feature_dim": feature_dim, "decay": decay, "output_scaling": decay}
    taylor = feature_map == "taylor"
    linear = TaylorLinearAttentionConfig(**heads) if taylor else LinearAttentionConfig(feature_map=feature_map, **heads)
    conv = GatedShortConvConfig(expansion=4, n_taps=3)
    sliding = SlidingWindowAttentionConfig(n_heads=16, window=window or 1, positions="rotary")
    if convolutions:
        period: tuple[MixerConfig, ...] = (conv, linear, sliding if window else conv, conv, conv)
        pattern = period * 5 + (conv, conv)
    else:
        pattern = (linear, sliding) if window else (linear,)
    return text_model(pattern, d_model=1024, n_layers=27, mlp_width=2048, pad_vocab_multiple=8)


TABLE_6: Mapping[str, Mapping[str, Any]] = {
    "taylor-16": {},
    "performer-16": {"feature_map": "performer"},
    "cosformer-16": {"feature_map": "cosformer"},
    "cosformer-64": {"feature_map": "cosformer", "feature_dim": 64},
    "taylor-32": {"feature_dim": 32},
    "taylor-24": {"feature_dim": 24},
    "taylor-8": {"feature_dim": 8},
    "no-decay": {"decay": False},
    "no-window": {"window": 0},
    "no-convolutions": {"convolutions": False},
    "linear-only": {"feature_dim": 24, "window": 0, "convolutions": False},
    "window-128": {"window": 128},
}
"""Arguments of `based_360m_ablation` by row of Based, Table 6, without its repeated rows."""


def gla_362m(*, as_printed: bool = False) -> LanguageModelConfig:
    """GLA, Based, Table 13, column 355M: 360.4M parameters (Table 1: 362m); 24 layers of width 1024, 4 heads.

    Args:
      as_printed: SwiGLU of width 2 d, as in the table; 303.8M parameters. False: 8/3 d rounded up to a multiple of 256,
        as in GLA's own models, which gives the count of Table 1 to 0.5 %.
    """
    width = 2048 if as_printed else neox_mlp_width(1024, 4)
    gla = GatedLinearAttentionConfig(n_heads=4)
    return text_model((gla,), d_model=1024, n_layers=24, mlp_width=width, pad_vocab_multiple=16)


def mamba_360m() -> LanguageModelConfig:
    """Mamba, Based, Table 9, column 355M: 358.2M parameters (Table 1: 358m).

    46 layers of width 1024 without an MLP; states of size 16, an expansion of 2, 4 taps, RMSNorm.
    """
    mamba = MambaConfig(d_state=16, expand=2, n_taps=4)
    return text_model((mamba,), d_model=1024, n_layers=46, mlp="none", pad_vocab_multiple=16)


def mamba_1_3b() -> LanguageModelConfig:
    """Mamba, Based, Table 9, column 1.4B: 1319M parameters (Table 1: 1.32b); 46 layers of width 2048."""
    return dataclasses.replace(mamba_360m(), d_model=2048)


def h3_362m() -> LanguageModelConfig:
    """H3, Based, Table 11: 363.2M parameters (Table 1: 362m).

    24 layers of width 1024, 16 heads of 64 channels; the table's "MLP width 4" is a SwiGLU of 8/3 d, rounded up to a
    multiple of 256. The size of the state is not printed; 64 as in Zoology, Table 13.
    """
    width = neox_mlp_width(1024, 4)
    mixer = H3Config(d_state=64, head_dim=64)
    return text_model((mixer,), d_model=1024, n_layers=24, mlp_width=width, pad_vocab_multiple=16)


def hyena_355m() -> LanguageModelConfig:
    """Hyena, Based, Table 10: 360.3M parameters (the table's header: 355M); 29 layers of width 1024, SwiGLU of 2 d."""
    return text_model((text_hyena(),), d_model=1024, n_layers=29, mlp_width=2048, pad_vocab_multiple=16)


def rwkv5_362m() -> LanguageModelConfig:
    """RWKV-5, Based, Table 12: 362.2M parameters (Table 1: 362m); 19 layers of width 1024, "MLP width 3.5".

    A layer is a time mix of 16 heads and a channel mix of 3.5 d, here two layers without MLP, initialized by depth as
    in the reference code. LayerNorm. The table does not say that the head is untied; a tied one would give 310.8M.
    Deviation: no norm between the embedding and the first layer.
    """
    pattern = list[MixerConfig]()
    for i in range(19):
        place = {"layer_index": i, "n_layers": 19, "projections": "release"}
        pattern += [RWKV5TimeMixConfig(n_heads=16, **place), RWKV4ChannelMixConfig(hidden_width=3584, **place)]
    return rwkv_model(pattern, d_model=1024, pad_vocab_multiple=16)


def pythia_356m() -> LanguageModelConfig:
    """Transformer (Pythia), Based, Table 2: 353.8M parameters (the table: 356m); 24 layers of width 1024, 16 heads.

    No setting is printed. Our reading is Pythia 410M (`pythia_410m`) with GPT-2's tokens, a tied head (which gives the
    count to 0.6 %) and GPT-2's initialization.
    """
    attention = AttentionConfig(n_heads=16, positions="rotary", rotary_fraction=0.25, qkv_bias=True, out_bias=True)
    frame = {"mlp": "gelu", "mlp_bias": True, "norm": "layer", "parallel_residual": True}
    return text_model((attention,), d_model=1024, n_layers=24, pad_vocab_multiple=16, **frame)
