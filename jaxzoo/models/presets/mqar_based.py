"""The two-layer models of MQAR: Based (Arora et al. 2024), Figures 2, 3 and 8."""

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
from jaxzoo.models.presets.preset_parts import Variant, is_release, mqar_model, short_conv


def mqar_based(
    *, d_model: int = 64, length: int = 64, feature_dim: int = 16, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Based on MQAR, Based, Figure 2: BaseConv with 3 taps, then Taylor linear attention of one head.

    There is no sliding window here, although Based's models of text have one; `mqar_sliding_window` is its
    own curve.

    Args:
      d_model: width; 48, 64 or 128 in the figure.
      length: longest sequence; 1024 in the figure.
      feature_dim: width of queries and keys; 8, 16 or 24 in the figure, 8 in the released Zoology config.
      variant: as in `mqar_base_conv`. In the release the output projection of the linear attention starts at 0.02, not
        at 0.02 / sqrt(2 n_layers): its name there, `proj_o`, escapes the rule that scales it.
    """
    out_std = 0.02 if is_release(variant) else None
    linear = TaylorLinearAttentionConfig(n_heads=1, feature_dim=feature_dim, out_init_std=out_std)
    return mqar_model((short_conv(variant), linear), d_model, length, variant)


def mqar_hybrid_attention(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """Attention on MQAR, Based, Figure 2: BaseConv with 3 taps, then attention of one head without positions.

    Args:
      d_model: width; 64 or 128 in the figure.
      length: longest sequence; 1024 in the figure.
      variant: as in `mqar_base_conv`.
    """
    attention = AttentionConfig(n_heads=1, qkv_bias=True, out_bias=True)
    return mqar_model((short_conv(variant), attention), d_model, length, variant)


def mqar_sliding_window(
    *, d_model: int = 128, length: int = 64, window: int = 64, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Sliding window attention on MQAR, Based, Figure 2: BaseConv with 3 taps, then one windowed head.

    Args:
      d_model: width; 128 in the figure.
      length: longest sequence; 1024 in the figure.
      window: 8, 16, .. 1024 in the figure.
      variant: as in `mqar_base_conv`; the released mixer sees `window` tokens back besides the token itself.
    """
    sliding = SlidingWindowAttentionConfig(
        n_heads=1, window=window + is_release(variant), positions="none", qkv_bias=True, out_bias=True
    )
    return mqar_model((short_conv(variant), sliding), d_model, length, variant)


def mqar_big_bird(
    *, d_model: int = 64, length: int = 1024, block_size: int = 64, variant: Variant = "paper"
) -> LanguageModelConfig:
    """BigBird on MQAR, Based, Figure 8: BaseConv with 3 taps, then one head of block-sparse attention.

    Args:
      d_model: width; 64 in the figure.
      length: longest sequence; 1024 in the figure.
      block_size: 4, 8, .. 128 in the figure.
      variant: as in `mqar_base_conv`; what differs inside the mixer: see `BigBirdConfig` and its file.
    """
    sparse = BigBirdConfig(n_heads=1, block_size=block_size, qkv_bias=True, out_bias=True)
    return mqar_model((short_conv(variant), sparse), d_model, length, variant)


def mqar_nystromformer(
    *, d_model: int = 128, length: int = 1024, n_landmarks: int = 64, variant: Variant = "paper"
) -> LanguageModelConfig:
    """NystromFormer on MQAR, Based, Figure 8: BaseConv with 3 taps, then one head of attention through landmarks.

    Not causal in either variant; see `NystromFormer`.

    Args:
      d_model: width; 128 in the figure.
      length: longest sequence; 1024 in the figure.
      n_landmarks: 16, 32, .. 512 in the figure.
      variant: as in `mqar_base_conv`; the released mixer has masks and no convolution of the values.
    """
    options = {"form": "release", "n_taps": 0} if is_release(variant) else {}
    mixer = NystromFormerConfig(n_heads=1, n_landmarks=n_landmarks, qkv_bias=True, out_bias=True, **options)
    return mqar_model((short_conv(variant), mixer), d_model, length, variant)


def mqar_scatter_brain(
    *, d_model: int = 64, length: int = 1024, window: int = 64, n_features: int = 64, variant: Variant = "paper"
) -> LanguageModelConfig:
    """ScatterBrain on MQAR, Based, Figure 8: BaseConv with 3 taps, then one head of windows and random features.

    Args:
      d_model: width; 64, 128 or 256 in the figure.
      length: longest sequence; 1024 in the figure.
      window: 4, 16, 64, 256 or 1024 in the figure.
      n_features: random features; 32, 64 or 128 in the figure.
      variant: as in `mqar_sliding_window`.
    """
    mixer = ScatterBrainConfig(
        n_heads=1, window=window + is_release(variant), n_features=n_features, qkv_bias=True, out_bias=True
    )
    return mqar_model((short_conv(variant), mixer), d_model, length, variant)


def mqar_linear_attention(
    *,
    d_model: int = 64,
    length: int = 64,
    feature_map: FeatureMap = "pos_elu",
    feature_dim: int | None = None,
    variant: Variant = "paper",
) -> LanguageModelConfig:
    """Feature maps on MQAR, Based, Figure 3: BaseConv with 3 taps, then linear attention of one head.

    Args:
      d_model: width; 64, 128, .. 512 in the figure.
      length: longest sequence, and what cosformer divides positions by; 1024 in the figure.
      feature_map: pos_elu, relu, square, identity, cosformer, performer and taylor in the figure (for the last
        `mqar_based` is faster); all_poly in its released configs.
      feature_dim: width of queries and keys; None: d_model. 16 or 24 of taylor in the figure.
      variant: as in `mqar_based`. The released performer has 256 features, the paper's as many as channels; the
        released all_poly starts as all other linear layers do.
    """
    release = is_release(variant)
    width = feature_dim or d_model
    linear = LinearAttentionConfig(
        n_heads=1,
        feature_map=feature_map,
        feature_dim=width,
        n_features=256 if release and feature_map == "performer" else None,
        poly_init="model" if release and feature_map == "all_poly" else None,
        out_init_std=0.02 if release else None,
    )
    return mqar_model((short_conv(variant), linear), d_model, length, variant)


def mqar_mamba(*, d_model: int = 64, length: int = 64, d_state: int = 16) -> LanguageModelConfig:
    """Mamba on MQAR, Based, Figure 2: two layers, without a second branch.

    RMSNorm, as in the released block; after the last layer the release has LayerNorm.

    Args:
      d_model: width; 64, 128 or 256 in the figure.
      length: longest sequence; 1024 in the figure.
      d_state: states a channel; 8, 16 or 24 in the figure.
    """
    model = mqar_model((MambaConfig(d_state=d_state),), d_model, length, "release")
    return dataclasses.replace(model, mlp="none", norm="rms")
