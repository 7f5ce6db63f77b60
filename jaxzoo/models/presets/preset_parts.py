"""Shared parts of the presets: variants, and the frame of the papers' models of text."""

from collections.abc import Sequence
from typing import Any, Literal

from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.mixers import BaseConvConfig, HyenaConfig, MixerConfig
from jaxzoo.models.model_config import LanguageModelConfig

Variant = Literal["paper", "release"]
BIASES: dict[str, Any] = {"qkv_bias": True, "out_bias": True}
"""Biases of the attention of MQAR models."""


def is_release(variant: Variant) -> bool:
    """Returns whether the variant is the released one. Raises `ValueError` if it is neither."""
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
    """Zoology's models of text: the "FFN width" of its tables, the vocabulary padded to a multiple of 128."""
    width = neox_mlp_width(d_model, ffn_width)
    return text_model(pattern, d_model=d_model, n_layers=n_layers, mlp_width=width, pad_vocab_multiple=128)


def fla_model(pattern: tuple[MixerConfig, ...], *, d_model: int, n_layers: int) -> LanguageModelConfig:
    """Models of text in the sizes of flash-linear-attention's configurations: SwiGLU, an untied head, 32000 tokens."""
    rows = {"vocab_size": 32000, "norm_eps": 1e-6, "tie_embeddings": False}
    return text_model(pattern, d_model=d_model, n_layers=n_layers, mlp_width=neox_mlp_width(d_model, 4), **rows)


def rwkv_model(pattern: Sequence[MixerConfig], *, d_model: int, **fields: Any) -> LanguageModelConfig:
    """RWKV's models of text: alternating layers of time mix and channel mix, no MLP, LayerNorm, an untied head."""
    shared = {"mlp": "none", "norm": "layer", "tie_embeddings": False}
    return text_model(tuple(pattern), d_model=d_model, n_layers=len(pattern), **(shared | fields))


def neox_mlp_width(d_model: int, factor: float) -> int:
    """Hidden units of a SwiGLU of "FFN width" `factor` in GPT-NeoX: 2/3 of `factor d_model`, rounded up to 256."""
    return -(-int(2 * factor * d_model / 3) // 256) * 256


def spread(layer: MixerConfig, among: tuple[MixerConfig, ...], *, n_layers: int, count: int) -> tuple[MixerConfig, ...]:
    """Repeats the pattern `among` to `n_layers`, and replaces `count` layers at equal distances by `layer`."""
    layers = [among[i % len(among)] for i in range(n_layers)]
    for i in range(count):
        layers[(2 * i + 1) * n_layers // (2 * count)] = layer
    return tuple(layers)


def text_hyena(sine_frequency: float = 14.0) -> HyenaConfig:
    """Hyena of the papers' models of text, as released. The 33 position features are those of Hyena's own models."""
    network = HyenaFilterConfig(
        emb_dim=33, width=64, n_inner=2, sine_frequency=sine_frequency, fast_decay=0.3, slow_decay=1.2
    )
    return HyenaConfig(order=2, form="release", n_short_taps=3, filter_network=network)


def short_conv(variant: Variant) -> BaseConvConfig:
    """BaseConv with 3 taps."""
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
    """Model of MQAR: 8192 tokens, float32, LayerNorm, dropout 0.1 on the embedding (the released default).

    Each layer has an MLP in the paper (width 4 d, GELU and biases, the code's default); the released configs of the
    figures have the identity in its place.
    """
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
