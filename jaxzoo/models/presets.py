"""The models of Zoology and Based, by name and size.

A preset is a function that returns a `LanguageModelConfig`. Where a paper and the code that its authors
released disagree, `variant="paper"` follows the paper and `variant="release"` the code. Parameter counts in
the docstrings are ours, padding rows of the vocabulary included.

Deviations shared by all: no dropout on attention weights (0.1 in the released MQAR attention runs).
"""

from collections.abc import Callable
from typing import Literal

from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    GatedShortConvConfig,
    MixerConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models.config import LanguageModelConfig

Variant = Literal["paper", "release"]


def _is_release(variant: Variant) -> bool:
    if variant not in ("paper", "release"):
        raise ValueError(f"variant={variant!r} must be 'paper' or 'release'")
    return variant == "release"


def based_360m(variant: Variant = "paper") -> LanguageModelConfig:
    """Based, Table 7, column 355M: 362.6M parameters (Table 1: 363m).

    27 layers of width 1024: Taylor linear attention at layers 1, 6, 11, 16, 21, sliding window attention at
    2, 7, 12, 17, 22, gated short convolutions elsewhere; SwiGLU of width 2 d.

    Args:
      variant: the window is 64 tokens in the paper; 129 in the released config (128 back and itself).
    """
    window = 129 if _is_release(variant) else 64
    return _based(d_model=1024, n_layers=27, linear=(1, 6, 11, 16, 21), window=window)


def based_1_3b(variant: Variant = "paper") -> LanguageModelConfig:
    """Based, Table 7, column 1.4B: 1349M parameters (Table 1: 1.35b).

    36 layers of width 1792: Taylor linear attention at layers 1, 6, 11, 16, 21, 27, 33, sliding window
    attention right behind each, gated short convolutions elsewhere; SwiGLU of width 2 d.

    Args:
      variant: the window is 16 tokens in the paper; 129 in the released config.
    """
    window = 129 if _is_release(variant) else 16
    return _based(d_model=1792, n_layers=36, linear=(1, 6, 11, 16, 21, 27, 33), window=window)


def _based(*, d_model: int, n_layers: int, linear: tuple[int, ...], window: int) -> LanguageModelConfig:
    pattern: list[MixerConfig] = [GatedShortConvConfig(expansion=4, n_taps=3)] * n_layers
    for i in linear:
        pattern[i] = TaylorLinearAttentionConfig(n_heads=16, feature_dim=16)
        pattern[i + 1] = SlidingWindowAttentionConfig(n_heads=16, window=window, positions="rotary")
    return _text_model(tuple(pattern), d_model=d_model, n_layers=n_layers, mlp_width=2 * d_model, pad_vocab_multiple=8)


def transformer_pp_360m() -> LanguageModelConfig:
    """Transformer++, Based, Table 8, column 355M: 359.8M parameters (the paper says 360m).

    24 layers of width 1024, 16 heads, rotary positions on half of each head, SwiGLU of width 8/3 d rounded up
    to a multiple of 256 (the table's "MLP width 4" before the factor 2/3), no biases.
    """
    attention = AttentionConfig(n_heads=16, positions="rotary", rotary_fraction=0.5)
    return _text_model((attention,), d_model=1024, n_layers=24, pad_vocab_multiple=16)


def transformer_pp_1_3b() -> LanguageModelConfig:
    """Transformer++, Based, Table 8, column 1.4B: 1327M parameters (the paper says 1.33b).

    36 layers of width 1680, 24 heads; the rest as `transformer_pp_360m`. Deviation: half of a head would be
    35 channels, an odd number; 36 of the 70 rotate here, at the usual frequencies of 36.
    """
    attention = AttentionConfig(n_heads=24, positions="rotary", rotary_fraction=36 / 70)
    return _text_model((attention,), d_model=1680, n_layers=36, pad_vocab_multiple=16)


def zoology_attention_73m() -> LanguageModelConfig:
    """Attention, Zoology, Table 7: 73.3M parameters (paper: 73M); 6 layers of width 704, 8 heads.

    Rotary positions over the whole head and SwiGLU, "following the Llama architecture"; RMSNorm and the
    absence of biases are our reading of that. The vocabulary is padded to a multiple of 128, as GPT-NeoX
    does.
    """
    return _zoology_attention(d_model=704, n_layers=6, n_heads=8)


def zoology_attention_125m() -> LanguageModelConfig:
    """Attention, Zoology, Table 7: 123.6M parameters (paper: 125M); 12 layers of width 768, 12 heads.

    The rest as `zoology_attention_73m`.
    """
    return _zoology_attention(d_model=768, n_layers=12, n_heads=12)


def zoology_attention_360m() -> LanguageModelConfig:
    """Attention, Zoology, Table 7: 359.8M parameters (paper: 360M); 24 layers of width 1024, 16 heads.

    The rest as `zoology_attention_73m`.
    """
    return _zoology_attention(d_model=1024, n_layers=24, n_heads=16)


def _zoology_attention(*, d_model: int, n_layers: int, n_heads: int) -> LanguageModelConfig:
    attention = AttentionConfig(n_heads=n_heads, positions="rotary", rotary_fraction=1.0)
    return _text_model((attention,), d_model=d_model, n_layers=n_layers, pad_vocab_multiple=128)


def _text_model(
    pattern: tuple[MixerConfig, ...],
    *,
    d_model: int,
    n_layers: int,
    pad_vocab_multiple: int,
    mlp_width: int = 0,
) -> LanguageModelConfig:
    """What the papers' models of text share: the GPT-2 vocabulary, 2048 tokens, bfloat16, RMSNorm, SwiGLU."""
    return LanguageModelConfig(
        pattern=pattern,
        d_model=d_model,
        n_layers=n_layers,
        vocab_size=50257,
        pad_vocab_multiple=pad_vocab_multiple,
        max_length=2048,
        mlp="swiglu",
        mlp_width=mlp_width,
        norm="rms",
        dtype="bfloat16",
    )


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
    out_std = 0.02 if _is_release(variant) else None
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
        n_heads=1, window=window + _is_release(variant), positions="none", qkv_bias=True, out_bias=True
    )
    return _mqar((_short_conv(variant), sliding), d_model, length, variant)


def _short_conv(variant: Variant) -> BaseConvConfig:
    return BaseConvConfig(filter="short", n_taps=3, form="release" if _is_release(variant) else "paper")


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
        mlp="identity" if _is_release(variant) else "gelu",
        mlp_bias=not _is_release(variant),
        max_positions=max_positions,
        embed_dropout=0.1,
    )


PRESETS: dict[str, Callable[..., LanguageModelConfig]] = {
    "based-360m": based_360m,
    "based-1.3b": based_1_3b,
    "transformer++-360m": transformer_pp_360m,
    "transformer++-1.3b": transformer_pp_1_3b,
    "zoology-attention-73m": zoology_attention_73m,
    "zoology-attention-125m": zoology_attention_125m,
    "zoology-attention-360m": zoology_attention_360m,
    "mqar-attention": mqar_attention,
    "mqar-base-conv": mqar_base_conv,
    "mqar-based": mqar_based,
    "mqar-hybrid-attention": mqar_hybrid_attention,
    "mqar-sliding-window": mqar_sliding_window,
}
"""Every preset by its name; all can be called without arguments."""
