"""Byte-level language models of one size, 0.3M parameters: `--model.mixer NAME`, on the source of Python's library.

Three layers of width 96 with SwiGLU. `taylor_linear_attention`, the default, gives the hybrid of the Based paper: gated
short convolution, Taylor linear attention, sliding window. Any other mixer is in all layers, with four heads where it
has heads; softmax attention gets rotary positions, BaseConv implicit filters. `experiments/models` holds trained ones.
"""

import dataclasses

from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    GatedDeltaNetConfig,
    GatedShortConvConfig,
    Mamba2Config,
    MixerConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models import LanguageModelConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

FIELDS = {
    AttentionConfig: {"n_heads": 4, "positions": "rotary"},
    BaseConvConfig: {"filter": "implicit"},
    GatedDeltaNetConfig: {"n_heads": 4},
    Mamba2Config: {"d_state": 32, "head_dim": 48},
}
"""Settings of a mixer that differ from its defaults."""

BASED = (
    GatedShortConvConfig(),
    TaylorLinearAttentionConfig(n_heads=4, feature_dim=8),
    SlidingWindowAttentionConfig(n_heads=4, window=32),
)


def config(mixer: MixerConfig = BASED[1]) -> RunConfig:
    """The experiment with `mixer` in every layer, or for Taylor linear attention with Based's three mixers."""
    plain = (dataclasses.replace(mixer, **FIELDS.get(type(mixer), {})),)
    return RunConfig(
        model=LanguageModelConfig(
            pattern=BASED if isinstance(mixer, TaylorLinearAttentionConfig) else plain,
            d_model=96,
            n_layers=3,
            vocab_size=257,
            max_length=256,
            mlp_width=192,
            norm="rms",
        ),
        data=TextDataConfig(length=256, valid_tokens=50_000),
        optimizer=OptimizerConfig(learning_rate=4e-3, b2=0.95, final_fraction=0.1),
        train=TrainConfig(
            steps=1500, batch_size=4, valid_batch_size=32, log_every=50, eval_every=500, checkpoint_every=250
        ),
    )
