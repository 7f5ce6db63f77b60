"""BaseConv alone on MQAR: `configs/mqar/based.py` with a long implicit convolution in the second layer.

Zoology's Figure 2: filters that do not depend on the input need a width that grows with the length to recall.
"""

from jaxzoo.mixers import BaseConvConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

config = RunConfig(
    model=LanguageModelConfig(
        pattern=(BaseConvConfig(n_taps=3), BaseConvConfig(filter="implicit")),
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
