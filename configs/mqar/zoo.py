"""Any mixer of the zoo on MQAR: `--model.mixer hyena`; 64 tokens, 8 pairs, vocabulary 8192, 2 layers of width 64.

The hybrid of Based, Figure 2: a short convolution of 3 taps, then the mixer, whose fields are the flags
`--model.pattern.1.FIELD`. The convolution brings each key to its value; without it some mixers would need a layer more,
so what tells them apart here is the recall. As in `configs/mqar/based.py` there is no MLP, and the projections of the
mixer start five times larger than 0.02.

A mixer that reads token ids gets those of the example. One that sees the future trains like the others, since no answer
stands in its example, but cannot generate. One that mixes channels alone has nothing but the convolution to look back
with, and recalls nothing.
"""

import dataclasses

from jaxzoo.mixers import BaseConvConfig, MixerConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

DEFAULT = TaylorLinearAttentionConfig()


def config(mixer: MixerConfig = DEFAULT) -> RunConfig:
    """The experiment with `mixer` in the second layer; `--model.mixer NAME` gives the registered one, as it is built
    without arguments."""
    return RunConfig(
        model=LanguageModelConfig(
            pattern=(BaseConvConfig(n_taps=3), dataclasses.replace(mixer, init_std=0.1)),
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
        optimizer=OptimizerConfig(learning_rate=3e-3, b2=0.95, decay_embeddings=False),
        train=TrainConfig(steps=800, eval_every=100, checkpoint_every=400),
    )
