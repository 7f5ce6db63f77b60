"""One layer of convolution-augmented attention learns N-gram recall: MQNAR of 2-grams (CAT, Definition 5 and Figure 5).

128 tokens, 16 pairs and 4 queries without a match, vocabulary 512, width 64. Sizes follow Zoology's, to which the paper
keeps, but for the vocabulary (8192 there).

The grams of an example are made of 7 tokens, so that most share a token with others, in either place. Two heads whose
filters mix them (multi-head CAT) tell such grams apart: a head can read the token before in other channels than its
own. One number a tap cannot, without normalised rows (Theorem 1): whatever taps and projections, some gram scores no
less with another one than with itself. See it with `--model.pattern.0.filters head`.
"""

from jaxzoo.mixers import ConvolutionAugmentedAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import ngram_recall
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

TASK = ngram_recall.mqnar(length=128, n_pairs=16, vocab_size=512)

config = RunConfig(
    model=LanguageModelConfig(
        pattern=(ConvolutionAugmentedAttentionConfig(n_heads=2, n_taps=3, filters="mixing", init_std=0.1),),
        d_model=64,
        n_layers=1,
        vocab_size=512,
        max_length=128,
        mlp="none",
    ),
    data=RecallDataConfig(
        train=(Examples(task=TASK, n_examples=100_000),),
        valid=(Examples(task=TASK, n_examples=1_000),),
    ),
    optimizer=OptimizerConfig(learning_rate=3e-3, b2=0.95, decay_embeddings=False),
    train=TrainConfig(steps=600, eval_every=100, checkpoint_every=300),
)
