"""The two-layer models of MQAR: Based (Arora et al. 2024), Figures 2, 3 and 8.

All but `mqar_mamba` have a BaseConv of 3 taps in layer 0 and the named mixer, with one head, in layer 1. Arguments of
all presets: `d_model`, the width (48 to 512 in the figures); `length`, the longest sequence (1024 in the figures);
`variant`, as in `mqar_base_conv`.
"""

import dataclasses

from jaxzoo.mixers import (
    AttentionConfig,
    BigBirdConfig,
    LinearAttentionConfig,
    MambaConfig,
    NystromFormerConfig,
    ScatterBrainConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.mixers.linear.feature_map import FeatureMap
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import BIASES, Variant, is_release, mqar_model, short_conv


def mqar_based(
    *, d_model: int = 64, length: int = 64, feature_dim: int = 16, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Based on MQAR, Figure 2: Taylor linear attention, without the sliding window of Based's models of text.

    In the release the output projection of the linear attention starts at 0.02 instead of 0.02 / sqrt(2 n_layers): the
    rule that scales the initialization does not match its name there, `proj_o`.

    Args:
      feature_dim: width of queries and keys; 8, 16 or 24 in the figure, 8 in the released Zoology config.
    """
    out_std = 0.02 if is_release(variant) else None
    linear = TaylorLinearAttentionConfig(n_heads=1, feature_dim=feature_dim, out_init_std=out_std)
    return mqar_model((short_conv(variant), linear), d_model, length, variant)


def mqar_hybrid_attention(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """Attention on MQAR, Figure 2: without positions."""
    return mqar_model((short_conv(variant), AttentionConfig(n_heads=1, **BIASES)), d_model, length, variant)


def mqar_sliding_window(
    *, d_model: int = 128, length: int = 64, window: int = 64, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Sliding window attention on MQAR, Figure 2.

    Args:
      window: 8 to 1024 in the figure; in the release a token sees itself and `window` earlier ones.
    """
    sliding = SlidingWindowAttentionConfig(n_heads=1, window=window + is_release(variant), positions="none", **BIASES)
    return mqar_model((short_conv(variant), sliding), d_model, length, variant)


def mqar_big_bird(
    *, d_model: int = 64, length: int = 1024, block_size: int = 64, variant: Variant = "paper"
) -> LanguageModelConfig:
    """BigBird on MQAR, Figure 8: block-sparse attention; `block_size` is 4 to 128 in the figure."""
    sparse = BigBirdConfig(n_heads=1, block_size=block_size, **BIASES)
    return mqar_model((short_conv(variant), sparse), d_model, length, variant)


def mqar_nystromformer(
    *, d_model: int = 128, length: int = 1024, n_landmarks: int = 64, variant: Variant = "paper"
) -> LanguageModelConfig:
    """NystromFormer on MQAR, Figure 8: attention through landmarks; not causal.

    Args:
      n_landmarks: 16 to 512 in the figure.
      variant: the released mixer has masks and no convolution of the values.
    """
    options = {"form": "release", "n_taps": 0} if is_release(variant) else {}
    mixer = NystromFormerConfig(n_heads=1, n_landmarks=n_landmarks, **BIASES, **options)
    return mqar_model((short_conv(variant), mixer), d_model, length, variant)


def mqar_scatter_brain(
    *, d_model: int = 64, length: int = 1024, window: int = 64, n_features: int = 64, variant: Variant = "paper"
) -> LanguageModelConfig:
    """ScatterBrain on MQAR, Figure 8: a window and random features.

    Args:
      window: 4 to 1024 in the figure, counted as in `mqar_sliding_window`.
      n_features: random features; 32, 64 or 128 in the figure.
    """
    mixer = ScatterBrainConfig(n_heads=1, window=window + is_release(variant), n_features=n_features, **BIASES)
    return mqar_model((short_conv(variant), mixer), d_model, length, variant)


def mqar_linear_attention(
    *,
    d_model: int = 64,
    length: int = 64,
    feature_map: FeatureMap = "pos_elu",
    feature_dim: int | None = None,
    variant: Variant = "paper",
) -> LanguageModelConfig:
    """Linear attention with a feature map on MQAR, Figure 3; cosformer divides positions by `length`.

    Args:
      feature_map: pos_elu, relu, square, identity, cosformer, performer and taylor in the figure (for the last
        `mqar_based` is faster); all_poly in its released configs.
      feature_dim: width of queries and keys; None: d_model. 16 or 24 of taylor in the figure.
      variant: as in `mqar_based`. The released performer has 256 features, the paper's as many as channels; the
        released all_poly is initialized as all other linear layers.
    """
    release = is_release(variant)
    linear = LinearAttentionConfig(
        n_heads=1,
        feature_map=feature_map,
        feature_dim=feature_dim or d_model,
        n_features=256 if release and feature_map == "performer" else None,
        poly_init="model" if release and feature_map == "all_poly" else None,
        out_init_std=0.02 if release else None,
    )
    return mqar_model((short_conv(variant), linear), d_model, length, variant)


def mqar_mamba(*, d_model: int = 64, length: int = 64, d_state: int = 16) -> LanguageModelConfig:
    """Mamba on MQAR, Figure 2: two layers without MLP; `d_state` is 8, 16 or 24 in the figure.

    RMSNorm, as in the released block; after the last layer the release has LayerNorm.
    """
    model = mqar_model((MambaConfig(d_state=d_state),), d_model, length, "release")
    return dataclasses.replace(model, mlp="none", norm="rms")
