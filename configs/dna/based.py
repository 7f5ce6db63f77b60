"""Based, Table 3 (Arora et al. 2024): language models of the human genome, 10B bases each, at 1k, 4k and 8k bases.

Choose one by `--config configs/dna/based.py --name NAME`. The paper prints sizes (46.2M, 46.1M and 48.8M parameters)
and perplexities, no shape, batch or learning rate ("after hyperparameter sweeping"). Ours: width 512 for all three; the
numbers of layers, and of each kind in Based, with which the sizes are met to 0.7 %; batches of 2^20 bases; the
optimizer of its language models. Nobody has trained them with this library.

    jaxzoo data-build --source fasta --paths hg38.fa.gz --intervals human-sequences.bed --out corpora/hg38
    jaxzoo data-tokenize --data corpora/hg38 --tokenizer dna --out corpora/hg38_tokens
"""

from jaxzoo.data.token_data import TokenDataConfig
from jaxzoo.mixers import (
    AttentionConfig,
    GatedShortConvConfig,
    MambaConfig,
    MixerConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models import LanguageModelConfig
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

BATCH_BASES = 2**20
STEPS = 9_537
"""10B bases."""
CONV, LINEAR = GatedShortConvConfig(expansion=4, n_taps=3), TaylorLinearAttentionConfig(n_heads=16, feature_dim=16)
WINDOW = SlidingWindowAttentionConfig(n_heads=16, window=64, positions="rotary")


def model(pattern: tuple[MixerConfig, ...], *, length: int, n_layers: int, **mlp) -> LanguageModelConfig:
    """A model of the frame that all three share."""
    return LanguageModelConfig(
        pattern=pattern,
        d_model=512,
        n_layers=n_layers,
        vocab_size=6,
        pad_vocab_multiple=8,
        max_length=length,
        norm="rms",
        dtype="bfloat16",
        **{"mlp": "swiglu", **mlp},
    )


def pretraining(model: LanguageModelConfig) -> RunConfig:
    """Data, batch and optimizer around a model."""
    length = model.max_length
    return RunConfig(
        model=model,
        data=TokenDataConfig(path="corpora/hg38_tokens", length=length, valid_tokens=2**20, reverse_complements=True),
        optimizer=OptimizerConfig(
            learning_rate=8e-4, warmup_fraction=0.01, final_fraction=0.1, b2=0.95, decay_embeddings=False
        ),
        train=TrainConfig(
            steps=STEPS, batch_size=BATCH_BASES // length, log_every=10, eval_every=500, checkpoint_every=500
        ),
        mesh=MeshConfig(),
    )


def models(length: int) -> dict[str, LanguageModelConfig]:
    """The three models at a length."""
    based = (CONV, LINEAR, WINDOW, CONV, CONV) * 3 + (LINEAR, CONV)
    return {
        "transformer_pp": model(
            (AttentionConfig(n_heads=8, positions="rotary", rotary_fraction=0.5),),
            length=length,
            n_layers=11,
            mlp_width=2048,
        ),
        "mamba": model((MambaConfig(d_state=16, expand=2, n_taps=4),), length=length, n_layers=27, mlp="none"),
        "based": model(based, length=length, n_layers=17, mlp_width=1024),
    }


configs = {
    f"{name}_{length // 1024}k": pretraining(each)
    for length in (1024, 4096, 8192)
    for name, each in models(length).items()
}
