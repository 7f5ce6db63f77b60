"""Convolution-augmented attention in Pythia's frame, on the source of Python's standard library.

CAT (Li et al. 2025), Table 2 and Figure 1 (right), with 0.9M parameters in the place of 370M: GPT-NeoX's parallel
residual, GELU and biases, an untied head, four heads of which a quarter of the channels rotates, filters of 21 taps.
Bits per byte of the validation text after 300 steps of 16 windows of 256 bytes, one seed; a bigram model has 3.57:

| layers | flags | 256 bytes | 512 | 1024 |
| --- | --- | --- | --- | --- |
| CAT, rotary | | 2.83 | 2.82 | 2.85 |
| CAT, no positions | `--model.pattern.0.positions none` | 2.83 | 2.81 | 2.81 |
| attention, rotary | `--model.mixer attention` | 2.71 | 3.66 | 4.66 |
| attention, no positions | `--model.mixer attention --model.pattern.0.positions none` | 3.44 | 3.49 | 3.54 |

With YaRN of factor 4, as in the figure, the rotary rows are 2.84, 2.82, 2.82 (CAT) and 3.15, 3.22, 3.26 (attention):
`jaxzoo evaluate --run DIR` with `--model.pattern.0.rotary-scaling.kind yarn`, `.factor 4` and
`.original-length 256`.

What the paper says, and what holds here. CAT needs no positions: so it is, and attention without them hardly learns
(the paper's diverged). CAT keeps its perplexity on texts longer than those of training, with or without positions,
and attention does not: so it is. CAT with rotary positions is better than attention with them, and than CAT without:
neither holds at this size, in so few steps.
"""

import dataclasses

from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.mixers import ConvolutionAugmentedAttentionConfig, MixerConfig
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

CAT = ConvolutionAugmentedAttentionConfig(n_taps=21)


def config(mixer: MixerConfig = CAT) -> RunConfig:
    """The experiment with `mixer` in every layer; a softmax attention gets Pythia's heads, biases and rotation."""
    if isinstance(mixer, MultiHeadConfig):
        pythia = {"n_heads": 4, "positions": "rotary", "rotary_fraction": 0.25, "qkv_bias": True, "out_bias": True}
        mixer = dataclasses.replace(mixer, **pythia)
    return RunConfig(
        model=LanguageModelConfig(
            pattern=(mixer,),
            d_model=128,
            n_layers=4,
            vocab_size=257,
            max_length=1024,
            mlp="gelu",
            mlp_bias=True,
            parallel_residual=True,
            tie_embeddings=False,
        ),
        data=TextDataConfig(length=256, valid_lengths=(256, 512, 1024), valid_tokens=50_000),
        optimizer=OptimizerConfig(learning_rate=4e-3, b2=0.95, final_fraction=0.1),
        train=TrainConfig(
            steps=300, batch_size=16, valid_batch_size=8, log_every=10, eval_every=100, checkpoint_every=100
        ),
    )
