"""Attention on the same task as `based.py`, as Zoology has it: one head, learned positions, no convolution."""

from jaxzoo.config import ExperimentConfig, OptimizerConfig, TrainConfig
from jaxzoo.mixers import AttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import RecallDataConfig

config = ExperimentConfig(
    model=LanguageModelConfig(
        pattern=(AttentionConfig(n_heads=1, init_std=0.1),),
        d_model=64,
        n_layers=2,
        vocab_size=8192,
        max_length=64,
        mlp="none",
        learned_positions=True,
    ),
    data=RecallDataConfig(
        task=mqar.paper(length=64, n_pairs=8),
        train=((64, 8, 100_000),),
        valid=((64, 8, 1_000),),
    ),
    optimizer=OptimizerConfig(learning_rate=3e-3, b2=0.95, decay_embeddings=False),
    train=TrainConfig(steps=2000, eval_every=200, checkpoint_every=500, stop_at_accuracy=0.995),
)
