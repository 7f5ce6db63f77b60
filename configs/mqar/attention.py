"""Attention on MQAR: `configs/mqar/based.py` with softmax attention in the second layer, the upper bound of recall.

The hybrid of Based, Figure 2: a short convolution, then attention of one head without positions.
"""

from jaxzoo.mixers import AttentionConfig, BaseConvConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

config = RunConfig(
    model=LanguageModelConfig(
        pattern=(BaseConvConfig(n_taps=3), AttentionConfig(n_heads=1, init_std=0.1)),
        d_model=64,
        n_layers=2,
        vocab_size=8192,
        max_length=64,
        mlp="none",
    ),
    data=RecallDataConfig(
        train=(Examples(task=mqar.paper(length=64, n_pairs=8), n_examples=100_000),),
        valid=(Examples(task=mqar.paper(length=64, n_pairs=8), n_examples=1_000),),
    ),
    optimizer=OptimizerConfig(learning_rate=1e-2, b2=0.95, decay_embeddings=False),
    train=TrainConfig(steps=500, eval_every=100, checkpoint_every=250),
)
