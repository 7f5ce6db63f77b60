"""The language models of Zoology (Arora et al. 2024): Tables 7 to 16, without Hyena and BaseConv.

The tables' "FFN width" is that of the GPT-NeoX code (`neox_mlp_width`): with it the parameter counts of attention,
Hyena, H3, long convolutions and (to 3 %) BaseConv equal the paper's. The vocabulary is padded to a multiple of 128, as
in GPT-NeoX. What the docstring of the smallest model of a kind says holds for the larger ones.
"""

from jaxzoo.mixers import (
    AttentionConfig,
    H3Config,
    LiquidS4Config,
    LongConvConfig,
    MixerConfig,
    RetNetConfig,
    RWKV4ChannelMixConfig,
    RWKV4TimeMixConfig,
)
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import rwkv_model, text_model, zoology_model

LONG_CONV = LongConvConfig(n_channels=1, squash=0.001, kernel_dropout=0.1, kernel_learning_rate_scale=0.0625)
"""The mixer of Table 16."""


def zoology_attention_73m() -> LanguageModelConfig:
    """Attention, Zoology, Table 7: 73.3M parameters (paper: 73M); 6 layers of width 704, 8 heads.

    Rotary positions over the whole head and SwiGLU, "following the Llama architecture"; RMSNorm and no biases are our
    reading of that.
    """
    return _zoology_attention(d_model=704, n_layers=6, n_heads=8)


def zoology_attention_125m() -> LanguageModelConfig:
    """Attention, Zoology, Table 7: 123.6M parameters (paper: 125M); 12 layers of width 768, 12 heads."""
    return _zoology_attention(d_model=768, n_layers=12, n_heads=12)


def zoology_attention_360m() -> LanguageModelConfig:
    """Attention, Zoology, Table 7: 359.8M parameters (paper: 360M); 24 layers of width 1024, 16 heads."""
    return _zoology_attention(d_model=1024, n_layers=24, n_heads=16)


def _zoology_attention(*, d_model: int, n_layers: int, n_heads: int) -> LanguageModelConfig:
    attention = AttentionConfig(n_heads=n_heads, positions="rotary", rotary_fraction=1.0)
    return text_model((attention,), d_model=d_model, n_layers=n_layers, pad_vocab_multiple=128)


def zoology_long_conv_76m() -> LanguageModelConfig:
    """Long convolution, Zoology, Table 16: 76.0M parameters (paper: 76M); 6 layers of width 704.

    Squash, dropout and learning rate of the filter as in the table. Its output is a GLU, the released default, which
    gives the paper's count.
    """
    return zoology_model((LONG_CONV,), d_model=704, n_layers=6, ffn_width=4)


def zoology_long_conv_128m(*, as_printed: bool = False) -> LanguageModelConfig:
    """Long convolution, Zoology, Table 16: 128.3M parameters (paper: 128M); 12 layers of width 768.

    Args:
      as_printed: width 864, as in the table; 154.3M parameters. False: 768, the width of attention at this size (Table
        7), which gives the paper's count.
    """
    return zoology_model((LONG_CONV,), d_model=864 if as_printed else 768, n_layers=12, ffn_width=4)


def zoology_long_conv_360m() -> LanguageModelConfig:
    """Long convolution, Zoology, Table 16: 359.9M parameters (paper: 360M); 24 layers of width 1024."""
    return zoology_model((LONG_CONV,), d_model=1024, n_layers=24, ffn_width=4)


def zoology_ret_net_152m() -> LanguageModelConfig:
    """RetNet, Zoology, Table 15: 151.9M parameters (paper: 152M); 12 layers of width 768, values of 1280.

    LayerNorm, chunks of 128 tokens. Not printed: heads (4 here) and the width of the MLP (a SwiGLU of 3 d, which gives
    the paper's count; 8/3 d gives 144.8M). Deviation: GPT-2's initialization instead of DeepNet's.
    """
    ret_net = RetNetConfig(n_heads=4, value_width=1280, chunk_size=128)
    return text_model((ret_net,), d_model=768, n_layers=12, mlp_width=2304, pad_vocab_multiple=128, norm="layer")


def zoology_h3_72m() -> LanguageModelConfig:
    """H3, Zoology, Table 13: 72.4M parameters (paper: 72M); 8 layers of width 720, states of 64, heads of 1 channel."""
    return zoology_model((H3Config(d_state=64),), d_model=720, n_layers=8)


def zoology_h3_168m() -> LanguageModelConfig:
    """H3, Zoology, Table 13: 168.6M parameters (paper: 168M); 19 layers of width 864."""
    return zoology_model((H3Config(d_state=64),), d_model=864, n_layers=19)


def zoology_h3_357m() -> LanguageModelConfig:
    """H3, Zoology, Table 13: 356.8M parameters (paper: 357M); 33 layers of width 1024."""
    return zoology_model((H3Config(d_state=64),), d_model=1024, n_layers=33)


def zoology_liquid_s4_145m() -> LanguageModelConfig:
    """Liquid-S4, Zoology, Table 3: 143.1M parameters (paper: 145M).

    No setting is printed. Our reading is H3 at this size (Table 13: width 864, "FFN width 2") with 20 layers, which is
    nearest to the count; states of 64; the mode that Liquid-S4's paper prefers (PB), with products of two inputs.
    """
    return zoology_model((LiquidS4Config(d_state=64, liquid="pb", order=2),), d_model=864, n_layers=20)


def zoology_rwkv_72m(*, as_printed: bool = False) -> LanguageModelConfig:
    """RWKV-4, Zoology, Table 14: 72.0M parameters (paper: 72M); 6 layers of width 512.

    A layer is a time mix and a channel mix, here two layers without MLP, initialized by depth as in the reference code.
    LayerNorm, an untied head. Deviation: no norm between the embedding and the first layer.

    Args:
      as_printed: width 624, as in the table; 93.2M parameters. False: 512, which gives the count of Tables 4 and 14.
    """
    return _zoology_rwkv(d_model=624 if as_printed else 512, n_layers=6)


def zoology_rwkv_169m() -> LanguageModelConfig:
    """RWKV-4, Zoology, Table 14: 169.4M parameters (paper: 169M); 12 layers of width 768."""
    return _zoology_rwkv(d_model=768, n_layers=12)


def zoology_rwkv_351m() -> LanguageModelConfig:
    """RWKV-4, Zoology, Table 14: 351.0M parameters (paper: 351M); 20 layers of width 984."""
    return _zoology_rwkv(d_model=984, n_layers=20)


def _zoology_rwkv(*, d_model: int, n_layers: int) -> LanguageModelConfig:
    pattern: list[MixerConfig] = []
    for i in range(n_layers):
        pattern.append(RWKV4TimeMixConfig(layer_index=i, n_layers=n_layers, projections="release"))
        pattern.append(RWKV4ChannelMixConfig(layer_index=i, n_layers=n_layers, projections="release"))
    return rwkv_model(pattern, d_model=d_model, pad_vocab_multiple=128)
