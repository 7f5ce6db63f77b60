"""Based on subword tokens: short convolutions, Taylor linear attention, windows of 32 tokens; 1.42M parameters.

One of three models of equal size with which docs/recall.md measures recall on real text; the others are
`configs/recall/attention.py` and `configs/recall/base_conv.py`. docs/data.md makes their data.
"""

from jaxzoo.data.token_data import TokenDataConfig
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
        vocab_size=4096,
        max_length=256,
        mlp_width=384,
        norm="rms",
    ),
    data=TokenDataConfig(path="corpora/demo_tokens", length=256, valid_tokens=200_000),
    optimizer=OptimizerConfig(learning_rate=4e-3, b2=0.95, final_fraction=0.1),
    train=TrainConfig(
        steps=2500, batch_size=16, valid_batch_size=32, log_every=50, eval_every=500, checkpoint_every=500
    ),
)
