"""BaseConv and its hybrids of Zoology (Arora et al. 2024): Tables 2 and 9."""

import dataclasses
from typing import Literal

from jaxzoo.mixers import AttentionConfig, BaseConvConfig, MixerConfig, SelectiveAttentionConfig
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import spread, zoology_model

Selection = Literal["random", "programmatic", "learned"]


def zoology_base_conv_168m() -> LanguageModelConfig:
    """BaseConv, Zoology, Table 9: 163.8M parameters (paper: 168M; 31 layers would have 167.8M); 30 layers of width 852.

    Layers alternate between filters of 3 taps and long implicit ones, as half of the channels in Table 10 each. "FFN
    width 2" is a SwiGLU of 1280. Deviation: the long filters are the ReLU network of the paper's Listing 2, with 64
    hidden units; Table 9 has the settings of Hyena's (order 64, sine, exponential modulation).
    """
    return _zoology_base_conv(d_model=852, n_layers=30)


def zoology_base_conv_354m() -> LanguageModelConfig:
    """BaseConv, Zoology, Table 9: 351.2M parameters (paper: 354M); 48 layers of width 1080."""
    return _zoology_base_conv(d_model=1080, n_layers=48)


def zoology_base_conv_attention_166m() -> LanguageModelConfig:
    """BaseConv + full attention, Zoology, Table 2: 170.1M parameters (paper: 166M).

    `zoology_base_conv_168m` with the attention of Table 7 in three of its 30 layers, at equal distances: 12 heads of 71
    channels, of which 70 rotate. Table 2 has 2M parameters fewer with attention than without, although each such layer
    (four projections instead of one) has 2.1M more.
    """
    return _zoology_base_conv(d_model=852, n_layers=30, hybrid=AttentionConfig(n_heads=12))


def zoology_base_conv_attention_351m() -> LanguageModelConfig:
    """BaseConv + full attention, Zoology, Table 2: 361.7M parameters (paper: 351M).

    `zoology_base_conv_354m` with attention in three of its 48 layers, at equal distances; 15 heads, as the 16 of Table
    7 do not divide 1080. Table 2 has 3M parameters fewer with attention than without; a layer has 3.5M more.
    """
    return _zoology_base_conv(d_model=1080, n_layers=48, hybrid=AttentionConfig(n_heads=15))


def zoology_base_conv_selective_162m(*, selection: Selection = "programmatic") -> LanguageModelConfig:
    """BaseConv + selective look-ups, Zoology, Table 2: 170.1M parameters (paper: 162M, learned selection 166M).

    `zoology_base_conv_attention_166m` with attention for selected tokens only: random ones, programmatic (tokens that
    have occurred before) or learned (256 tokens of a row, by a parameter vector of 852 entries per layer).
    """
    selective = SelectiveAttentionConfig(n_heads=12, selection=selection, n_selected=256)
    return _zoology_base_conv(d_model=852, n_layers=30, hybrid=selective)


def zoology_base_conv_selective_365m(*, selection: Selection = "programmatic") -> LanguageModelConfig:
    """BaseConv + selective look-ups, Zoology, Table 2: 361.7M parameters (paper: 365M, learned selection 351M).

    `zoology_base_conv_attention_351m` with attention for selected tokens only.
    """
    selective = SelectiveAttentionConfig(n_heads=15, selection=selection, n_selected=256)
    return _zoology_base_conv(d_model=1080, n_layers=48, hybrid=selective)


def _zoology_base_conv(*, d_model: int, n_layers: int, hybrid: MultiHeadConfig | None = None) -> LanguageModelConfig:
    """BaseConv, with attention in three layers if given; an odd last channel of a head does not rotate."""
    pattern: tuple[MixerConfig, ...] = (
        BaseConvConfig(filter="short", n_taps=3),
        BaseConvConfig(filter="implicit", filter_width=64, filter_decay=False),
    )
    if hybrid is not None:
        head_dim = d_model // hybrid.n_heads
        rotary = dataclasses.replace(hybrid, positions="rotary", rotary_fraction=head_dim // 2 * 2 / head_dim)
        pattern = spread(rotary, pattern, n_layers=n_layers, count=3)
    return zoology_model(pattern, d_model=d_model, n_layers=n_layers)
