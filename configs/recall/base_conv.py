"""BaseConv on subword tokens, with as many parameters as `configs/recall/based.py`: 1.42M.

Zoology's gated convolution, whose filters do not depend on the text: a short and a long one in turn.
"""

from jaxzoo.data.token_data import TokenDataConfig
from jaxzoo.mixers import BaseConvConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

config = RunConfig(
    model=LanguageModelConfig(
        pattern=(BaseConvConfig(n_taps=3), BaseConvConfig(filter="implicit")),
        d_model=128,
        n_layers=4,
        vocab_size=4096,
        max_length=256,
        mlp_width=536,
        norm="rms",
    ),
    data=TokenDataConfig(path="corpora/demo_tokens", length=256, valid_tokens=200_000),
    optimizer=OptimizerConfig(learning_rate=4e-3, b2=0.95, final_fraction=0.1),
    train=TrainConfig(
        steps=2500, batch_size=16, valid_batch_size=32, log_every=50, eval_every=500, checkpoint_every=500
    ),
)
