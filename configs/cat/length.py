"""Trained at one length, validated at many: MQAR of 128 tokens, then 32 to 1,024 (CAT, Figure 6).

A sixteenth of the tokens are pairs, at every length: the longer example asks for more to be remembered. Vocabulary
2048 (8192 in the paper), width 64. The mixer is that of `--model.mixer NAME`; as in the paper convolution-augmented
attention, linear too, has one layer and the others have two. `--model.pattern.0.FIELD` sets its fields, such as
`positions rotary`; `--model.max-positions 1024` adds learned positions, of which training sees the first 128.

The table after the training, `metrics.jsonl` and the learning curve have the accuracy by length. A trained run answers
with slower rotary positions by

    jaxzoo evaluate --run RUN --model.pattern.0.rotary-scaling.kind yarn \\
      --model.pattern.0.rotary-scaling.factor 8 --model.pattern.0.rotary-scaling.original-length 128

`experiments/cat_figure6.py` is the figure: its models, trained and drawn by `jaxzoo sweep`.
"""

import dataclasses
from collections.abc import Callable

from jaxzoo.mixers import ConvolutionAugmentedAttentionConfig, LinCATConfig, MixerConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import mqar
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

TRAINED, ASKED = 128, (32, 64, 128, 256, 512, 1024)
VOCAB_SIZE = 2048
DEFAULT = ConvolutionAugmentedAttentionConfig(n_heads=2, n_taps=3, filters="mixing")


def examples(length: int) -> TaskConfig:
    """The task at a length."""
    return mqar.paper(length=length, n_pairs=length // 16, vocab_size=VOCAB_SIZE)


def config(mixer: MixerConfig = DEFAULT, examples: Callable[[int], TaskConfig] = examples) -> RunConfig:
    """The experiment with `mixer`, on any task that has several lengths."""
    n_layers = 1 if isinstance(mixer, ConvolutionAugmentedAttentionConfig | LinCATConfig) else 2
    return RunConfig(
        model=LanguageModelConfig(
            pattern=(dataclasses.replace(mixer, init_std=0.1),),
            d_model=64,
            n_layers=n_layers,
            vocab_size=VOCAB_SIZE,
            max_length=max(ASKED),
            mlp="none",
        ),
        data=RecallDataConfig(
            train=(Examples(task=examples(TRAINED), n_examples=100_000),),
            valid=tuple(Examples(task=examples(length), n_examples=200) for length in ASKED),
        ),
        optimizer=OptimizerConfig(learning_rate=3e-3, b2=0.95, decay_embeddings=False),
        train=TrainConfig(steps=600, eval_every=200, checkpoint_every=300, valid_batch_size=50),
    )
