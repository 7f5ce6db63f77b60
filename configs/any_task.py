"""Any mixer on any task: `--model.mixer hyena --task selective_copy`, or FILE.py:NAME for either.

The model is that of `configs/mqar/zoo.py`: a short convolution, then the mixer, and what the task asks for, such as the
decoder of `--task compression`. The task is trained at its defaults; its fields are the flags
`--data.train.0.task.FIELD` and `--data.valid.0.task.FIELD`.
"""

import dataclasses

from jaxzoo.mixers import BaseConvConfig, MixerConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

MIXER, TASK = TaylorLinearAttentionConfig(), MQARConfig()


def config(mixer: MixerConfig = MIXER, task: TaskConfig = TASK) -> RunConfig:
    """The experiment with `mixer` in the second layer, and `task` for training and validation."""
    return RunConfig(
        model=LanguageModelConfig(
            pattern=(BaseConvConfig(n_taps=3), dataclasses.replace(mixer, init_std=0.1)),
            d_model=64,
            n_layers=2,
            vocab_size=task.vocab_size,
            max_length=task.length,
            mlp="none",
            **task.model_fields,
        ),
        data=RecallDataConfig(
            train=(Examples(task=task, n_examples=100_000),), valid=(Examples(task=task, n_examples=1_000),)
        ),
        optimizer=OptimizerConfig(learning_rate=3e-3, b2=0.95, decay_embeddings=False),
        train=TrainConfig(steps=800, eval_every=100, checkpoint_every=400),
    )
