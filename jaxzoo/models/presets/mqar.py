"""The two-layer models of MQAR: Zoology (Arora et al. 2024), Figures 2 and 6, and Based (Arora et al. 2024), Figures 2
and 3."""

import dataclasses
from collections.abc import Callable

from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    BlockedWindowAttentionConfig,
    H3Config,
    HyenaConfig,
    LinearAttentionConfig,
    MambaConfig,
    MixerConfig,
    RetNetConfig,
    RWKV4TimeMixConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.mixers.linear.feature_map import FeatureMap
from jaxzoo.models.config import LanguageModelConfig
from jaxzoo.models.presets.common import Variant, is_release


def mqar_attention(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """Attention on MQAR, Zoology, App. E.2 and Figure 2: two layers, one head with biases, learned positions.

    Args:
      d_model: width; 64, 128, 256 or 512 in the figure.
      length: longest sequence; 64, 128, 256 or 512 in the figure.
      variant: an MLP in each layer (`paper`), or the identity in its place (`release`).
    """
    attention = AttentionConfig(n_heads=1, qkv_bias=True, out_bias=True)
    return _mqar((attention,), d_model, length, variant, max_positions=length)


def mqar_base_conv(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """BaseConv on MQAR, Zoology, Figure 2: a filter of 3 tokens in layer 0, an implicit long one in layer 1.

    Args:
      d_model: width.
      length: longest sequence, and taps of the long filter.
      variant: Definition 4.1 and an MLP (`paper`), or the released mixer and the identity (`release`).
    """
    long = BaseConvConfig(filter="implicit", form=variant)
    return _mqar((_short_conv(variant), long), d_model, length, variant)


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
    return _mqar((_short_conv(variant), linear), d_model, length, variant)


def mqar_hybrid_attention(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """Attention on MQAR, Based, Figure 2: BaseConv with 3 taps, then attention of one head without positions.

    Args:
      d_model: width; 64 or 128 in the figure.
      length: longest sequence; 1024 in the figure.
      variant: as in `mqar_base_conv`.
    """
    attention = AttentionConfig(n_heads=1, qkv_bias=True, out_bias=True)
    return _mqar((_short_conv(variant), attention), d_model, length, variant)


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
    return _mqar((_short_conv(variant), sliding), d_model, length, variant)


def mqar_blocked_window(
    *, d_model: int = 64, length: int = 256, block_size: int = 32, look_back: bool = False, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Blocked window attention on MQAR, Zoology, Figure 6: two layers of one head inside blocks, learned positions.

    Args:
      d_model: width; 64, 128 or 256 in the figure.
      length: longest sequence; 256 in the figure.
      block_size: 8 or 32 in the figure.
      look_back: whether a token also sees the block before its own; not so in the figure.
      variant: as in `mqar_attention`.
    """
    blocked = BlockedWindowAttentionConfig(
        n_heads=1, block_size=block_size, look_back=look_back, qkv_bias=True, out_bias=True
    )
    return _mqar((blocked,), d_model, length, variant, max_positions=length)


def mqar_h3(
    *, d_model: int = 64, length: int = 64, d_state: int | None = None, variant: Variant = "paper"
) -> LanguageModelConfig:
    """H3 on MQAR, Zoology, Figure 2, and Based, Figure 2: two layers, heads of 2 channels.

    Args:
      d_model: width; 64, 128, 256 or (Zoology) 512 in the figures.
      length: longest sequence; 64, 128, 256 or 512 (Zoology), 1024 (Based).
      d_state: numbers of state; None: `length`, as in Zoology. d_model / 4 in Based.
      variant: an MLP in each layer (`paper`), or the identity in its place (`release`). In the release the output
        projections start at 0.02, not at 0.02 / sqrt(2 n_layers): their name there escapes the rule that scales them.
    """
    out_std = 0.02 if is_release(variant) else None
    h3 = H3Config(d_state=d_state or length, head_dim=2, out_init_std=out_std)
    return _mqar((h3,), d_model, length, variant)


def mqar_hyena(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """Hyena on MQAR, Zoology, Figure 2, and Based, Figure 2: two layers of order 2.

    The filter network is that of the released configs in both variants: 3 position features, a sine frequency of 1.

    Args:
      d_model: width; 64, 128, 256 or (Zoology) 512 in the figures.
      length: longest sequence, and taps of the long filters.
      variant: Definition 3.1 of Hyena's paper and an MLP (`paper`), or the released operator and the identity
        (`release`).
    """
    network = HyenaFilterConfig(emb_dim=3, sine_frequency=1.0)
    return _mqar((HyenaConfig(form=variant, filter_network=network),), d_model, length, variant)


def mqar_mamba(*, d_model: int = 64, length: int = 64, d_state: int = 16) -> LanguageModelConfig:
    """Mamba on MQAR, Based, Figure 2: two layers, without a second branch.

    RMSNorm, as in the released block; behind the last layer the release has LayerNorm.

    Args:
      d_model: width; 64, 128 or 256 in the figure.
      length: longest sequence; 1024 in the figure.
      d_state: states a channel; 8, 16 or 24 in the figure.
    """
    model = _mqar((MambaConfig(d_state=d_state),), d_model, length, "release")
    return dataclasses.replace(model, mlp="none", norm="rms")


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
    release, width = is_release(variant), feature_dim or d_model
    linear = LinearAttentionConfig(
        n_heads=1,
        feature_map=feature_map,
        feature_dim=width,
        n_features=256 if release and feature_map == "performer" else 0,
        poly_init="model" if release and feature_map == "all_poly" else None,
        out_init_std=0.02 if release else None,
    )
    return _mqar((_short_conv(variant), linear), d_model, length, variant)


def mqar_ret_net(
    *,
    d_model: int = 64,
    length: int = 256,
    chunk_size: int = 32,
    gamma: float = 31 / 32,
    variant: Variant = "paper",
) -> LanguageModelConfig:
    """RetNet on MQAR, Zoology, Figure 6 ("chunked RNN"): two layers of the recurrence of App. H.2.3, one head.

    Args:
      d_model: width; 64, 128 or 256 in the figure.
      length: longest sequence; 256 in the figure.
      chunk_size: 8 or 32 in the figure; it changes the speed alone.
      gamma: decay a token; not given in the paper. Ours is that of RetNet's first head.
      variant: an MLP in each layer (`paper`), or the identity in its place (`release`).
    """
    plain = dataclasses.replace(RetNetConfig.plain(gamma=gamma), chunk_size=chunk_size)
    return _mqar((plain,), d_model, length, variant)


def mqar_rwkv(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """RWKV-4 on MQAR, Zoology, Figure 2: two layers of time mixing.

    Args:
      d_model: width; 64, 128, 256 or 512 in the figure.
      length: longest sequence; 64, 128, 256 or 512 in the figure.
      variant: an MLP in each layer (`paper`), or the identity in its place (`release`). In the release the output
        projections start at 0.02, not at 0.02 / sqrt(2 n_layers): their name there escapes the rule that scales them.
    """
    out_std = 0.02 if is_release(variant) else None
    layers = tuple(RWKV4TimeMixConfig(layer_index=i, n_layers=2, out_init_std=out_std) for i in range(2))
    return _mqar(layers, d_model, length, variant)


def mqar_pure_sliding_window(
    *, d_model: int = 64, length: int = 256, window: int = 32, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Sliding window attention on MQAR, Zoology, Figure 6: two layers of one windowed head, learned positions.

    Args:
      d_model: width; 64, 128 or 256 in the figure.
      length: longest sequence; 256 in the figure.
      window: 8 or 32 in the figure.
      variant: as in `mqar_attention`; the released mixer sees `window` tokens back besides the token itself.
    """
    sliding = SlidingWindowAttentionConfig(
        n_heads=1, window=window + is_release(variant), positions="none", qkv_bias=True, out_bias=True
    )
    return _mqar((sliding,), d_model, length, variant, max_positions=length)


def _short_conv(variant: Variant) -> BaseConvConfig:
    return BaseConvConfig(filter="short", n_taps=3, form="release" if is_release(variant) else "paper")


def _mqar(
    pattern: tuple[MixerConfig, ...],
    d_model: int,
    length: int,
    variant: Variant,
    *,
    max_positions: int | None = None,
) -> LanguageModelConfig:
    """Two layers over 8192 tokens in float32, LayerNorm, dropout 0.1 on the embedding (the released default;
    the papers are silent). Each layer has an MLP in the paper (width 4 d, GELU and biases, as the code's
    default has it); the released configs of the figures have the identity in its place."""
    return LanguageModelConfig(
        pattern=pattern,
        d_model=d_model,
        n_layers=2,
        vocab_size=8192,
        max_length=length,
        mlp="identity" if is_release(variant) else "gelu",
        mlp_bias=not is_release(variant),
        max_positions=max_positions,
        embed_dropout=0.1,
    )


PRESETS: dict[str, Callable[..., LanguageModelConfig]] = {
    "mqar-attention": mqar_attention,
    "mqar-base-conv": mqar_base_conv,
    "mqar-based": mqar_based,
    "mqar-blocked-window": mqar_blocked_window,
    "mqar-h3": mqar_h3,
    "mqar-hybrid-attention": mqar_hybrid_attention,
    "mqar-hyena": mqar_hyena,
    "mqar-linear-attention": mqar_linear_attention,
    "mqar-mamba": mqar_mamba,
    "mqar-pure-sliding-window": mqar_pure_sliding_window,
    "mqar-ret-net": mqar_ret_net,
    "mqar-rwkv": mqar_rwkv,
    "mqar-sliding-window": mqar_sliding_window,
}
"""Every preset of this file by its name."""
