"""The two-layer models of MQAR: Zoology (Arora et al. 2024), Figures 2, 6 and 7.

Arguments of all presets: `d_model`, the width; `length`, the longest sequence, and the taps of long filters (each 64,
128, 256 or 512 in Figure 2); `variant`, an MLP in each layer (`paper`), or the identity in its place (`release`).
Attention has one head with biases, and learned positions.
"""

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
from jaxzoo.models.presets.preset_parts import BIASES, Variant, is_release, mqar_model, short_conv

FILTER_NETWORK = HyenaFilterConfig(emb_dim=3, sine_frequency=1.0)
"""Filter network of the released configs, used in both variants."""


def mqar_attention(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """Attention on MQAR, App. E.2 and Figure 2."""
    attention = AttentionConfig(n_heads=1, **BIASES)
    return mqar_model((attention,), d_model, length, variant, max_positions=length)


def mqar_base_conv(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """BaseConv on MQAR, Figure 2: a filter of 3 tokens in layer 0, an implicit long one in layer 1.

    The variant `paper` is Definition 4.1 with an MLP; `release` the released mixer with the identity.
    """
    long = BaseConvConfig(filter="implicit", form=variant)
    return mqar_model((short_conv(variant), long), d_model, length, variant)


def mqar_blocked_window(
    *, d_model: int = 64, length: int = 256, block_size: int = 32, look_back: bool = False, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Attention inside blocks on MQAR, Figure 6.

    Args:
      block_size: 8 or 32 in the figure.
      look_back: whether a token also sees the previous block; False in the figure.
    """
    blocked = BlockedWindowAttentionConfig(n_heads=1, block_size=block_size, look_back=look_back, **BIASES)
    return mqar_model((blocked,), d_model, length, variant, max_positions=length)


def mqar_h3(
    *, d_model: int = 64, length: int = 64, d_state: int | None = None, variant: Variant = "paper"
) -> LanguageModelConfig:
    """H3 on MQAR, Zoology, Figure 2, and Based, Figure 2: heads of 2 channels.

    In the release the output projections start at 0.02 instead of 0.02 / sqrt(2 n_layers): the rule that scales the
    initialization does not match their name there.

    Args:
      d_state: size of the state; None: `length`, as in Zoology. d_model / 4 in Based.
    """
    out_std = 0.02 if is_release(variant) else None
    h3 = H3Config(d_state=d_state or length, head_dim=2, out_init_std=out_std)
    return mqar_model((h3,), d_model, length, variant)


def mqar_hyena(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """Hyena of order 2 on MQAR, Zoology, Figure 2, and Based, Figure 2.

    The variant `paper` is Definition 3.1 of Hyena's paper with an MLP; `release` the released operator with the
    identity.
    """
    hyena = HyenaConfig(form=variant, filter_network=FILTER_NETWORK)
    return mqar_model((hyena,), d_model, length, variant)


def mqar_ret_net(
    *, d_model: int = 64, length: int = 256, chunk_size: int = 32, gamma: float = 31 / 32, variant: Variant = "paper"
) -> LanguageModelConfig:
    """RetNet on MQAR, Figure 6 ("chunked RNN"): the recurrence of App. H.2.3, one head.

    Args:
      chunk_size: 8 or 32 in the figure; affects speed only.
      gamma: decay per token; not given in the paper. Ours is that of RetNet's first head.
    """
    plain = dataclasses.replace(RetNetConfig.plain(gamma=gamma), chunk_size=chunk_size)
    return mqar_model((plain,), d_model, length, variant)


def mqar_multi_head_hyena(
    *, d_model: int = 64, length: int = 64, head_dim: int = 4, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Multi-head Hyena on MQAR, Figure 7.

    Args:
      head_dim: channels per head, which divide d_model; 1, 2, 4 or 8 in the figure. The figure calls them the number of
        heads, but cost and recall rise with the channels per head.
    """
    hyena = MultiHeadHyenaConfig(n_heads=d_model // head_dim, filter_network=FILTER_NETWORK)
    return mqar_model((hyena,), d_model, length, variant)


def mqar_input_dependent_conv(
    *,
    d_model: int = 64,
    length: int = 64,
    filter: Literal["programmatic", "autocorrelation"] = "programmatic",
    variant: Variant = "paper",
) -> LanguageModelConfig:
    """Input-dependent filters on MQAR, Figure 2 (bottom): a BaseConv of 3 taps, then a filter computed from the input.

    Not causal, as in the paper, which does not say which of the two layers has the filter.

    Args:
      filter: programmatic, by token ids without the filler 0, or by autocorrelation.
    """
    ignored = 0 if filter == "programmatic" else None
    mixer = InputDependentConvConfig(filter=filter, ignored_token=ignored)
    return mqar_model((short_conv(variant), mixer), d_model, length, variant)


def mqar_rwkv(*, d_model: int = 64, length: int = 64, variant: Variant = "paper") -> LanguageModelConfig:
    """RWKV-4 on MQAR, Figure 2: time mixing; output projections start as in `mqar_h3`."""
    out_std = 0.02 if is_release(variant) else None
    layers = tuple(RWKV4TimeMixConfig(layer_index=i, n_layers=2, out_init_std=out_std) for i in range(2))
    return mqar_model(layers, d_model, length, variant)


def mqar_pure_sliding_window(
    *, d_model: int = 64, length: int = 256, window: int = 32, variant: Variant = "paper"
) -> LanguageModelConfig:
    """Sliding window attention on MQAR, Figure 6.

    Args:
      window: 8 or 32 in the figure; in the release a token sees itself and `window` earlier ones.
    """
    sliding = SlidingWindowAttentionConfig(n_heads=1, window=window + is_release(variant), positions="none", **BIASES)
    return mqar_model((sliding,), d_model, length, variant, max_positions=length)
