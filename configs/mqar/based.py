"""Based learns associative recall: 64 tokens, 8 pairs, 8192 tokens, 2 layers of width 64 (Zoology, App. E.2).

A short convolution, then Taylor linear attention, as in Based, Figure 2, without MLP. Where it departs from the
papers, it does so to learn in under a minute: a higher learning rate, no weight decay on the embedding, and projections
of the linear attention that start at 0.1 instead of 0.02, which halves the steps to recall.
"""

from jaxzoo.config import ExperimentConfig, OptimizerConfig, TrainConfig
from jaxzoo.mixers import BaseConvConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import RecallDataConfig

config = ExperimentConfig(
    model=LanguageModelConfig(
        pattern=(BaseConvConfig(kernel_size=3), TaylorLinearAttentionConfig(feature_dim=16, init_std=0.1)),
        d_model=64,
        n_layers=2,
        vocab_size=8192,
        max_length=64,
        mlp="none",
    ),
    data=RecallDataConfig(
        task=mqar.paper(length=64, n_pairs=8),
        train=((64, 8, 100_000),),
        valid=((64, 8, 1_000),),
    ),
    optimizer=OptimizerConfig(learning_rate=1e-2, b2=0.95, decay_embeddings=False),
    train=TrainConfig(steps=500, eval_every=100, checkpoint_every=250),
)
