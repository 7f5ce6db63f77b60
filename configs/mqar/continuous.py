"""Continuous MQAR, key and value side by side, by one layer of any mixer: `--model.mixer NAME`.

The model of the released experiment (HazyResearch/zoology, `experiments/011126/mqar_continuous.py`): frozen embeddings,
one layer without a convolution or positions, no MLP but the second norm of each block. Sizes are a laptop's: 16 pairs
of 512 keys and 512 values, width 64, where the experiment has 4 to 64 pairs of 4096, and asks for up to 256.

The task is `jaxzoo.tasks.continuous_mqar`; `preset(n_pairs, n_passes, n_keys=..., n_values=...)` gives other sizes.
"""

import dataclasses

from jaxzoo.mixers import AttentionConfig, MixerConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import continuous_mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

MIXER, TASK = AttentionConfig(), continuous_mqar.preset(n_pairs=16, n_keys=512, n_values=512)


def config(mixer: MixerConfig = MIXER) -> RunConfig:
    """The experiment with one layer of `mixer`."""
    return RunConfig(
        model=LanguageModelConfig(
            pattern=(dataclasses.replace(mixer, init_std=0.1),),
            d_model=64,
            n_layers=1,
            vocab_size=TASK.vocab_size,
            max_length=TASK.length,
            mlp="identity",
            **TASK.model_fields,
        ),
        data=RecallDataConfig(
            train=(Examples(task=TASK, n_examples=100_000),), valid=(Examples(task=TASK, n_examples=1_000),)
        ),
        optimizer=OptimizerConfig(learning_rate=3e-3, b2=0.95),
        train=TrainConfig(steps=800, eval_every=100, checkpoint_every=400),
    )
