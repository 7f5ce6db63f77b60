"""Based learns associative recall: 64 tokens, 8 pairs, vocabulary 8192, 2 layers of width 64.

The sizes are those of Zoology, App. E.2, the layers those of Based, Figure 2: a short convolution, then Taylor linear
attention. Deviations: no MLP; the projections of the linear attention start five times larger than 0.02, so that
recall sets in after some 150 steps instead of 200 or more.
"""

from jaxzoo.mixers import BaseConvConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

config = RunConfig(
    model=LanguageModelConfig(
        pattern=(BaseConvConfig(n_taps=3), TaylorLinearAttentionConfig(feature_dim=16, init_std=0.1)),
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
