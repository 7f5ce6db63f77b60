"""A byte-level language model of Based's three mixers, on the source of Python's standard library."""

from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.mixers import GatedShortConvConfig, SlidingWindowAttentionConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

config = RunConfig(
    model=LanguageModelConfig(
        pattern=(
            GatedShortConvConfig(),
            TaylorLinearAttentionConfig(n_heads=4, feature_dim=8),
            GatedShortConvConfig(),
            SlidingWindowAttentionConfig(n_heads=4, window=32),
        ),
        d_model=128,
        n_layers=4,
        vocab_size=257,
        max_length=256,
        mlp_width=384,
        norm="rms",
    ),
    data=TextDataConfig(length=256, valid_tokens=50_000),
    optimizer=OptimizerConfig(learning_rate=4e-3, b2=0.95, final_fraction=0.1),
    train=TrainConfig(
        steps=300, batch_size=16, valid_batch_size=32, log_every=10, eval_every=100, checkpoint_every=100
    ),
)
