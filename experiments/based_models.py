"""What Based's recall figures share: the data, and the models by their names in the figures.

Most models are two layers, a gated convolution of three taps and the mixer that gives the model its name, as in the
released configurations (HazyResearch/zoology, `arxiv24_based_figure2`); Mamba, H3 and Hyena are two layers of
themselves. One head everywhere, no positions. H3 has d / 4 numbers of state and heads of two channels.
"""

import dataclasses
from typing import Any

from experiments.protocol import LAPTOP, RELEASE, Protocol
from jaxzoo.config import ExperimentConfig
from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    BigBirdConfig,
    H3Config,
    HyenaConfig,
    MambaConfig,
    MixerConfig,
    NystromFormerConfig,
    ScatterBrainConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.sweep import Point
from jaxzoo.tasks import mqar
from jaxzoo.tasks.presets import based_figure2
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig

BASED = dataclasses.replace(
    RELEASE,
    learning_rates=(1e-3, 10**-2.5, 1e-2, 10**-1.5),
    epochs=32,
    batch_size=lambda length, d_model: 256,
)
"""The released configurations of Based's figures; the paper prints none of it."""

SMOKE = dataclasses.replace(LAPTOP, learning_rates=(1e-2,), epochs=0.5, batch_size=lambda length, d_model: 16, evals=1)
"""A few steps."""


def mixture(
    train: tuple[tuple[int, int, int], ...], valid: tuple[tuple[int, int], ...], *, vocab_size: int, n_valid: int
) -> RecallDataConfig:
    """Recall data with fillers from the whole vocabulary, as those of Based's figures.

    Args:
      train: length, pairs and number of examples of each part.
      valid: length and pairs of each validation set.
      vocab_size: tokens.
      n_valid: examples of a validation set.
    """

    def examples(length: int, n_pairs: int, n_examples: int) -> Examples:
        return Examples(task=mqar.release(length, n_pairs, vocab_size=vocab_size, fillers="any"), n_examples=n_examples)

    return RecallDataConfig(
        train=tuple(examples(*part) for part in train), valid=tuple(examples(*part, n_valid) for part in valid)
    )


PAPER_DATA = mixture(
    tuple((256, pairs, 36_000) for pairs in (4, 8, 16, 32, 64)),
    tuple((1024, pairs) for pairs in (4, 8, 16, 32, 64, 128, 256)),
    vocab_size=8192,
    n_valid=1_000,
)
"""Sec. 3.1: 256 tokens with 4 to 64 pairs, asked at 1,024 tokens with 4 to 256 pairs. Not printed, and after the
release: doublings between these ends, 180,000 examples in all, 1,000 of each question, the vocabulary, the task."""
RELEASE_DATA = based_figure2()
"""The released mixture."""
LAPTOP_DATA = mixture(
    ((64, 4, 32_000), (64, 8, 32_000), (128, 16, 32_000)),
    ((64, 4), (64, 8), (64, 16), (128, 16), (128, 32)),
    vocab_size=512,
    n_valid=250,
)
"""A mixture for two cores."""
SMOKE_DATA = mixture(((16, 2, 64), (32, 4, 64)), ((32, 8),), vocab_size=64, n_valid=16)
"""As small as it can be."""


def run(
    point: Point,
    protocol: Protocol,
    data: RecallDataConfig,
    *,
    released: bool = False,
    pattern: tuple[MixerConfig, ...] = (),
) -> ExperimentConfig:
    """The run of a point with the axes `model`, `d_model`, `learning_rate`, and those that size the model's mixer.

    Args:
      point: where.
      protocol: how it is trained.
      data: what it learns and is asked.
      released: the models of the released code where they differ: the operator of the convolution, windows that do not
        count the token itself, biases of attention, and for Mamba RMSNorm and no second branch.
      pattern: the layers; empty: those of `layers`.
    """
    at: dict[str, Any] = dict(point)
    pattern = pattern or layers(point, released=released)
    sizes = {"d_model": at["d_model"], "learning_rate": at["learning_rate"], "n_layers": len(pattern)}
    config = protocol.run(pattern, data, **sizes)
    if released and at["model"] == "Mamba":
        return dataclasses.replace(config, model=dataclasses.replace(config.model, mlp="none", norm="rms"))
    return config


def layers(point: Point, *, released: bool = False) -> tuple[MixerConfig, ...]:
    """The two layers of the model of a point."""
    mixer = _mixer(dict(point), released=released)
    if isinstance(mixer, MambaConfig | H3Config | HyenaConfig):
        return (mixer, mixer)
    return (short_conv(released=released), mixer)


def short_conv(*, released: bool = False) -> BaseConvConfig:
    """The first layer of most models."""
    return BaseConvConfig(n_taps=3, form="release" if released else "paper")


def sliding_window(window: int, *, released: bool = False) -> SlidingWindowAttentionConfig:
    """Sliding window attention without positions; the released code's sees `window` keys before a token and itself."""
    return SlidingWindowAttentionConfig(
        window=window + released, positions="none", qkv_bias=released, out_bias=released
    )


def _mixer(at: dict[str, Any], *, released: bool) -> MixerConfig:
    """The mixer that gives the model its name."""
    biases: dict[str, Any] = {"qkv_bias": released, "out_bias": released}
    match at["model"]:
        case "Attention":
            return AttentionConfig(**biases)
        case "Based":
            return TaylorLinearAttentionConfig(feature_dim=at["feature_dim"])
        case "Sliding window":
            return sliding_window(at["window"], released=released)
        case "Mamba":
            return MambaConfig(d_state=at["d_state"])
        case "H3":
            return H3Config(d_state=at["d_model"] // 4, head_dim=2)
        case "Hyena":
            return HyenaConfig(form="release")
        case "ScatterBrain":
            return ScatterBrainConfig(window=at["window"] + released, n_features=at["n_features"], **biases)
        case "BigBird":
            return BigBirdConfig(block_size=at["block_size"], **biases)
        case "NystromFormer":
            return NystromFormerConfig(n_landmarks=at["n_landmarks"], form="release", n_taps=0)
    raise ValueError(f"model={at['model']!r} is not known")
