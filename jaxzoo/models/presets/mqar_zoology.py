"""The two-layer models of MQAR: Zoology (Arora et al. 2024), Figures 2, 6 and 7."""

import dataclasses
from typing import Literal

from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    BlockedWindowAttentionConfig,
    H3Config,
    HyenaConfig,
    InputDependentConvConfig,
    MultiHeadHyenaConfig,
    RetNetConfig,
    RWKV4TimeMixConfig,
    SlidingWindowAttentionConfig,
)
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import Variant, is_release, mqar_model, short_conv


def mqar_attention(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """Attention on MQAR, Zoology, App. E.2 and Figure 2: two layers, one head with biases, learned positions.

    Args:
      d_model: width; 64, 128, 256 or 512 in the figure.
      length: longest sequence; 64, 128, 256 or 512 in the figure.
      variant: an MLP in each layer (`paper`), or the identity in its place (`release`).
    """
    attention = AttentionConfig(n_heads=1, qkv_bias=True, out_bias=True)
    return mqar_model((attention,), d_model, length, variant, max_positions=length)


def mqar_base_conv(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """BaseConv on MQAR, Zoology, Figure 2: a filter of 3 tokens in layer 0, an implicit long one in layer 1.

    Args:
      d_model: width.
      length: longest sequence, and taps of the long filter.
      variant: Definition 4.1 and an MLP (`paper`), or the released mixer and the identity (`release`).
    """
    long = BaseConvConfig(filter="implicit", form=variant)
    return mqar_model((short_conv(variant), long), d_model, length, variant)


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
    return mqar_model((blocked,), d_model, length, variant, max_positions=length)


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
    return mqar_model((h3,), d_model, length, variant)


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
    return mqar_model((HyenaConfig(form=variant, filter_network=network),), d_model, length, variant)


def mqar_ret_net(
    *, d_model: int = 64, length: int = 256, chunk_size: int = 32, gamma: float = 31 / 32, variant: Variant = "paper"
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
    return mqar_model((plain,), d_model, length, variant)


def mqar_multi_head_hyena(
    *, d_model: int = 64, length: int = 64, head_dim: int = 4, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Multi-head Hyena on MQAR, Zoology, Figure 7: two layers.

    Args:
      d_model: width, a multiple of head_dim.
      length: longest sequence, and taps of the long filters.
      head_dim: channels of a head; 1, 2, 4 or 8 in the figure. It calls them the number of heads, but with more of them
        cost and recall rise, which they do with the channels of a head.
      variant: an MLP in each layer (`paper`), or the identity in its place (`release`).
    """
    network = HyenaFilterConfig(emb_dim=3, sine_frequency=1.0)
    hyena = MultiHeadHyenaConfig(n_heads=d_model // head_dim, filter_network=network)
    return mqar_model((hyena,), d_model, length, variant)


def mqar_input_dependent_conv(
    *,
    d_model: int = 64,
    length: int = 64,
    filter: Literal["programmatic", "autocorrelation"] = "programmatic",
    variant: Variant = "paper",
) -> LanguageModelConfig:
    """Input-dependent filters on MQAR, Zoology, Figure 2 (bottom): a BaseConv of 3 taps, then one whose filter the
    sequence makes of itself.

    Not causal, as the paper says. Which of the two layers has the filter it does not say.

    Args:
      d_model: width; 64, 128, 256 or 512 in the figure.
      length: longest sequence; 64, 128, 256 or 512 in the figure.
      filter: programmatic, by token ids but for the filler 0, or by autocorrelation.
      variant: an MLP in each layer (`paper`), or the identity in its place (`release`).
    """
    ignored = 0 if filter == "programmatic" else None
    mixer = InputDependentConvConfig(filter=filter, ignored_token=ignored)
    return mqar_model((short_conv(variant), mixer), d_model, length, variant)


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
    return mqar_model(layers, d_model, length, variant)


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
    return mqar_model((sliding,), d_model, length, variant, max_positions=length)
