"""Shared parts of the presets: variants, and the frame of the papers' models of text."""

from collections.abc import Sequence
from typing import Any, Literal

from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.mixers import BaseConvConfig, HyenaConfig, MixerConfig
from jaxzoo.models.model_config import LanguageModelConfig

Variant = Literal["paper", "release"]


def is_release(variant: Variant) -> bool:
    """Whether the variant is the released one.

    Raises:
      ValueError: it is neither.
    """
    if variant not in ("paper", "release"):
        raise ValueError(f"variant={variant!r} must be 'paper' or 'release'")
    return variant == "release"


def text_model(pattern: tuple[MixerConfig, ...], **fields: Any) -> LanguageModelConfig:
    """Shared fields of the papers' models of text: the GPT-2 vocabulary, 2048 tokens, bfloat16, RMSNorm, SwiGLU."""
    shared = {"vocab_size": 50257, "max_length": 2048, "mlp": "swiglu", "norm": "rms", "dtype": "bfloat16"}
    return LanguageModelConfig(pattern=pattern, **(shared | fields))


def zoology_model(
    pattern: tuple[MixerConfig, ...], *, d_model: int, n_layers: int, ffn_width: float = 2
) -> LanguageModelConfig:
    """Zoology's frame of the models of text: the "FFN width" of its tables, and the vocabulary padded to a multiple of
    128, as GPT-NeoX does."""
    width = neox_mlp_width(d_model, ffn_width)
    return text_model(pattern, d_model=d_model, n_layers=n_layers, mlp_width=width, pad_vocab_multiple=128)


def rwkv_model(pattern: Sequence[MixerConfig], *, d_model: int, **fields: Any) -> LanguageModelConfig:
    """RWKV's frame of the models of text: time and channel mixes in turn, which here are two layers without an MLP,
    LayerNorm, and a head of its own."""
    shared = {"mlp": "none", "norm": "layer", "tie_embeddings": False}
    return text_model(tuple(pattern), d_model=d_model, n_layers=len(pattern), **(shared | fields))


def neox_mlp_width(d_model: int, factor: float) -> int:
    """Hidden units of a SwiGLU of "FFN width" `factor`: 2/3 of `factor d_model`, rounded up to a multiple of 256.

    So the GPT-NeoX code counts, in which the models of Zoology were trained, and parts of Based's.
    """
    return -(-int(2 * factor * d_model / 3) // 256) * 256


def spread(layer: MixerConfig, among: tuple[MixerConfig, ...], *, n_layers: int, count: int) -> tuple[MixerConfig, ...]:
    """The layers of the pattern `among`, with `count` of them replaced by `layer` at equal distances."""
    layers = [among[i % len(among)] for i in range(n_layers)]
    for i in range(count):
        layers[(2 * i + 1) * n_layers // (2 * count)] = layer
    return tuple(layers)


def text_hyena(sine_frequency: float = 14.0) -> HyenaConfig:
    """The Hyena of the papers' models of text, as released: order 2, short filters of 3 taps, a network of 64 hidden
    units and 2 inner layers, windows that fall between 0.3 and 1.2 of the length.

    The position features are not printed; 33 are those of Hyena's own language models.
    """
    network = HyenaFilterConfig(
        emb_dim=33, width=64, n_inner=2, sine_frequency=sine_frequency, fast_decay=0.3, slow_decay=1.2
    )
    return HyenaConfig(order=2, form="release", n_short_taps=3, filter_network=network)


def short_conv(variant: Variant) -> BaseConvConfig:
    """BaseConv with 3 taps, as published or as released."""
    return BaseConvConfig(filter="short", n_taps=3, form="release" if is_release(variant) else "paper")


def mqar_model(
    pattern: tuple[MixerConfig, ...],
    d_model: int,
    length: int,
    variant: Variant,
    *,
    max_positions: int | None = None,
    n_layers: int = 2,
) -> LanguageModelConfig:
    """Two layers, or as many as are asked for, over 8192 tokens in float32, LayerNorm, dropout 0.1 on the embedding
    (the released default; the papers are silent). Each layer has an MLP in the paper (width 4 d, GELU and biases, as
    the code's default has it); the released configs of the figures have the identity in its place."""
    return LanguageModelConfig(
        pattern=pattern,
        d_model=d_model,
        n_layers=n_layers,
        vocab_size=8192,
        max_length=length,
        mlp="identity" if is_release(variant) else "gelu",
        mlp_bias=not is_release(variant),
        max_positions=max_positions,
        embed_dropout=0.1,
    )
