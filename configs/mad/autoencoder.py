"""MAD's compression by any mixer: `--model.mixer NAME`; 16 tokens of a vocabulary of 16, width 128.

The model of the released benchmark (athms/mad-lab, `benchmark.py`): two blocks of a mixer and a SwiGLU, then the
decoder of the last token and a head of its own; attention has 16 heads with rotary positions. Length and training are
a laptop's: the benchmark has 32 tokens, and trains 200 epochs of 12,800 examples in batches of 128, at each of six
pairs of learning rate and weight decay.
"""

from jaxzoo.mixers import AttentionConfig, MixerConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks.mad import CompressionConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

MIXER, TASK = AttentionConfig(n_heads=16, positions="rotary"), CompressionConfig(length=16)


def config(mixer: MixerConfig = MIXER) -> RunConfig:
    """The experiment with `mixer` in both blocks."""
    return RunConfig(
        model=LanguageModelConfig(
            pattern=(mixer,),
            d_model=128,
            n_layers=2,
            vocab_size=TASK.vocab_size,
            max_length=TASK.length,
            mlp="swiglu",
            tie_embeddings=False,
            **TASK.model_fields,
        ),
        data=RecallDataConfig(
            train=(Examples(task=TASK, n_examples=100_000),), valid=(Examples(task=TASK, n_examples=1_000),)
        ),
        optimizer=OptimizerConfig(learning_rate=2e-3, weight_decay=0.0),
        train=TrainConfig(steps=1500, eval_every=100, checkpoint_every=500),
    )
