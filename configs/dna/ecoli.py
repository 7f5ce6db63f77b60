"""Small language models of the genome of E. coli, for a laptop: Based, Mamba and attention at 1,024 bases.

The genome (4.9 million bases) is in the Debian package bowtie-examples, or NC_008253 of NCBI. The last tenth is for
validation and test:

    E_COLI=/usr/share/doc/bowtie/examples/genomes/NC_008253.fna.gz
    jaxzoo data-build --source fasta --paths $E_COLI --out corpora/ecoli \\
      --valid-regions NC_008253.1:4500001-4700000 --test-regions NC_008253.1:4700001-4938920
    jaxzoo data-tokenize --data corpora/ecoli --tokenizer dna --out corpora/ecoli_tokens
    jaxzoo train --config configs/dna/ecoli.py --name based
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
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

LENGTH = 1024


def training(pattern: tuple[MixerConfig, ...], **fields) -> RunConfig:
    """A model of width 96 on the genome."""
    return RunConfig(
        model=LanguageModelConfig(
            pattern=pattern,
            d_model=96,
            vocab_size=6,
            max_length=LENGTH,
            norm="rms",
            **{"n_layers": 4, "mlp_width": 192, **fields},
        ),
        data=TokenDataConfig(path="corpora/ecoli_tokens", length=LENGTH, valid_tokens=65_536, reverse_complements=True),
        optimizer=OptimizerConfig(learning_rate=3e-3, b2=0.95, final_fraction=0.1),
        train=TrainConfig(
            steps=600, batch_size=8, valid_batch_size=16, log_every=20, eval_every=200, checkpoint_every=200
        ),
    )


configs = {
    "based": training(
        (
            GatedShortConvConfig(),
            TaylorLinearAttentionConfig(n_heads=4, feature_dim=8),
            GatedShortConvConfig(),
            SlidingWindowAttentionConfig(n_heads=4, window=64, positions="rotary"),
        )
    ),
    "mamba": training((MambaConfig(d_state=16),), mlp="none", mlp_width=0, n_layers=6),
    "attention": training((AttentionConfig(n_heads=4, positions="rotary"),)),
}
