"""The language models of CAT (Li et al. 2025), Table 2 and Figure 1, and Pythia (Biderman et al. 2023).

Printed: Pythia with filters of width 21, 370M parameters, 15B tokens of SlimPajama, texts of 2048 tokens (Figure 1),
and otherwise the hyperparameters of GLA (Yang et al. 2023). Not printed: widths, heads and vocabulary. The Pythia
nearest to 370M is that of 410M: 302.3M parameters in its layers, and 103.0M in an embedding and a head of 50304 rows.
With the 32000 tokens of Mistral's tokenizer, as in GLA's runs on SlimPajama, embedding and head have 65.5M, the model
367.8M, our reading of the paper's 370M. The filters add 0.02M (1D) or 0.4M (multi-head).

From GPT-NeoX: biases everywhere, LayerNorm, the parallel residual, an untied head, rotation of the first quarter of a
head's channels (by halves), small init (standard deviation sqrt(2 / (5 d))) and wang init (2 / (n_layers sqrt(d))) for
output projections. Deviations: bfloat16 (Pythia: float16 with loss scaling); the exact GELU, as in the published
checkpoints (the training code uses the tanh approximation). Positions are rotary, or none (NoPE).
"""

import math
from typing import Any, Literal

from jaxzoo.mixers import AttentionConfig, ConvolutionAugmentedAttentionConfig
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import text_model

Positions = Literal["none", "rotary"]

PYTHIA: dict[str, Any] = {"n_heads": 16, "rotary_fraction": 0.25, "qkv_bias": True, "out_bias": True}
"""The attention of Pythia 410M, without its positions."""
PYTHIA_TOKENS = 50_277
MISTRAL_TOKENS = 32_000


def pythia_410m(*, positions: Positions = "rotary") -> LanguageModelConfig:
    """Pythia 410M: 405.3M parameters, as its checkpoint; 24 layers of width 1024, 16 heads, a GELU MLP of 4096."""
    return _gpt_neox(AttentionConfig(**PYTHIA, positions=positions), vocab_size=PYTHIA_TOKENS)


def pythia_370m(*, positions: Positions = "rotary") -> LanguageModelConfig:
    """Pythia, CAT, Table 2: 367.8M parameters; `pythia_410m` with 32000 tokens. Without positions training diverges."""
    return _gpt_neox(AttentionConfig(**PYTHIA, positions=positions), vocab_size=MISTRAL_TOKENS)


def cat_370m(*, positions: Positions = "rotary") -> LanguageModelConfig:
    """CAT, Table 2 (1D; rows "CAT, RoPE" and "CAT, no PE"): 367.9M parameters (paper: 370M).

    `pythia_370m` with a filter of 21 taps per head on queries, keys and values.
    """
    return _cat("head", positions)


def mh_cat_370m(*, positions: Positions = "rotary") -> LanguageModelConfig:
    """MH-CAT, Table 2: 368.2M parameters (paper: 370M).

    `cat_370m` with filters that mix the heads, 21 matrices (16, 16) on each of queries, keys and values.
    """
    return _cat("mixing", positions)


def _cat(filters: Literal["head", "mixing"], positions: Positions) -> LanguageModelConfig:
    mixer = ConvolutionAugmentedAttentionConfig(**PYTHIA, positions=positions, filters=filters, n_taps=21)
    return _gpt_neox(mixer, vocab_size=MISTRAL_TOKENS)


def _gpt_neox(mixer: MultiHeadConfig, *, vocab_size: int) -> LanguageModelConfig:
    return text_model(
        (mixer,),
        d_model=1024,
        n_layers=24,
        pad_vocab_multiple=128,
        vocab_size=vocab_size,
        mlp="gelu",
        mlp_bias=True,
        norm="layer",
        parallel_residual=True,
        tie_embeddings=False,
        init_std=math.sqrt(2 / (5 * 1024)),
        out_init_std=2 / (24 * math.sqrt(1024)),
    )
