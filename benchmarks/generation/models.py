"""Models of the generation benchmark, with equal numbers of parameters, and its protocol.

Based, a model of gated short convolutions alone (Based's, without its two other mixers) and Transformer++. At
360m and 1.3b the first and the last are the paper's own (Based, Tables 7 and 8), in bfloat16.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxzoo.mixers import (
    AttentionConfig,
    GatedShortConvConfig,
    MixerConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models import presets
from jaxzoo.models.model_config import LanguageModelConfig

Models = Mapping[str, LanguageModelConfig]


class Size(NamedTuple):
    """One size of model, and the protocol at that size."""

    models: Callable[[], Models]
    lengths: tuple[int, ...]
    """Tokens of a prompt; decode starts after each of them."""
    batches: tuple[int, ...]
    """Batch sizes of decode without a prompt."""
    generation_length: int
    """Capacity of key-value caches for decode without a prompt (Based, Figure 4: 1024 tokens)."""
    generation_steps: int
    """Number of timed steps; all steps cost the same."""
    context_steps: int
    """Number of timed decode steps after a prompt."""


def _small(d_model: int, vocab_size: int, layers: tuple[int, int, int], heads: tuple[int, int], window: int) -> Models:
    """Based, convolutions and Transformer++ of the given numbers of layers. Layers 1, 2, 6 and 7 of Based are no
    convolutions."""
    based: list[MixerConfig] = [GatedShortConvConfig()] * layers[0]
    for i in range(1, layers[0] - 1, 5):
        based[i] = TaylorLinearAttentionConfig(n_heads=heads[0], feature_dim=16)
        based[i + 1] = SlidingWindowAttentionConfig(n_heads=heads[0], window=window)
    attention = AttentionConfig(n_heads=heads[1], positions="rotary", rotary_fraction=0.5)

    def model(pattern: tuple[MixerConfig, ...], n_layers: int, mlp_width: int) -> LanguageModelConfig:
        return LanguageModelConfig(
            pattern=pattern,
            d_model=d_model,
            n_layers=n_layers,
            vocab_size=vocab_size,
            mlp_width=mlp_width,
            norm="rms",
        )

    return {
        "Based": model(tuple(based), layers[0], 2 * d_model),
        "convolutions": model((GatedShortConvConfig(),), layers[1], 2 * d_model),
        "Transformer++": model((attention,), layers[2], 8 * d_model // 3),
    }


def _paper(based: LanguageModelConfig, transformer: LanguageModelConfig, conv_layers: int) -> Models:
    """The two models of the paper, and Based with `conv_layers` layers of convolutions only."""
    convolutions = dataclasses.replace(based, pattern=(GatedShortConvConfig(),), n_layers=conv_layers)
    return {"Based": based, "convolutions": convolutions, "Transformer++": transformer}


SIZES: Mapping[str, Size] = {
    "tiny": Size(lambda: _small(48, 64, (3, 3, 3), (3, 3), 8), (8, 16), (1, 2), 20, 4, 4),
    "20m": Size(
        lambda: _small(384, 8192, (11, 10, 10), (8, 6), 64),
        lengths=(256, 512, 1024, 2048, 4096),
        batches=(1, 2, 4, 8, 16),
        generation_length=1024,
        generation_steps=16,
        context_steps=16,
    ),
    "360m": Size(
        lambda: _paper(presets.based_360m(), presets.transformer_pp_360m(), 25),
        lengths=(512, 1024, 2048, 4096, 8192, 16384),
        batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        generation_length=1024,
        generation_steps=1024,
        context_steps=64,
    ),
    "1.3b": Size(
        lambda: _paper(presets.based_1_3b(), presets.transformer_pp_1_3b(), 33),
        lengths=(512, 1024, 2048, 4096, 8192),
        batches=(1, 2, 4, 8, 16, 32, 64, 128),
        generation_length=1024,
        generation_steps=1024,
        context_steps=64,
    ),
}
"""The sizes by name. At 360m and 1.3b: Based, Figure 4 and Table 1 (prompts of 16,384 and 4,096 tokens)."""
