"""Models of text with attentions of 2024 to 2026: FoX, PaTH, NSA, MoBA and latent attention.

Each docstring says whose sizes they are. No preset here has been trained with this library.
"""

from jaxzoo.mixers import (
    ForgettingAttentionConfig,
    LatentAttentionConfig,
    MoBAConfig,
    NativeSparseAttentionConfig,
    PathAttentionConfig,
)
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import fla_model, neox_mlp_width, text_model


def fox_760m() -> LanguageModelConfig:
    """FoX (LLaMA) 760M (arXiv 2503.02130, in the authors' configuration): 834.8M parameters, 757.6M without the head.

    24 layers of width 1536, 24 heads, no positions, SwiGLU of 8/3 d, an untied head over 50257 tokens.
    """
    return _fox(ForgettingAttentionConfig(n_heads=24), ffn_width=4)


def fox_pro_760m() -> LanguageModelConfig:
    """FoX (Pro) 760M (arXiv 2503.02130): 836.7M parameters; as `fox_760m`, SwiGLU of 7/3 d."""
    return _fox(ForgettingAttentionConfig.pro(n_heads=24), ffn_width=3.5)


def _fox(mixer: ForgettingAttentionConfig, *, ffn_width: float) -> LanguageModelConfig:
    sizes = {"d_model": 1536, "n_layers": 24, "mlp_width": neox_mlp_width(1536, ffn_width), "norm_eps": 1e-6}
    return text_model((mixer,), **sizes, tie_embeddings=False)


def path_1_4b() -> LanguageModelConfig:
    """PaTH (fla's default configuration): 1369.2M parameters; 24 layers of width 2048, 32 heads."""
    return fla_model((PathAttentionConfig(n_heads=32),), d_model=2048, n_layers=24)


def nsa_1_2b() -> LanguageModelConfig:
    """NSA (fla's default configuration): 1185.0M parameters; 24 layers of width 2048, 64 heads of 32, 4 of keys.

    The paper's own model is a mixture of experts.
    """
    return fla_model((NativeSparseAttentionConfig(n_heads=64, n_kv_heads=4),), d_model=2048, n_layers=24)


def moba_1_4b() -> LanguageModelConfig:
    """MoBA (fla's default configuration): 1364.3M parameters; 24 layers of width 2048, 32 heads.

    A query sees 4 blocks of 256 tokens.
    """
    return fla_model((MoBAConfig.fla(n_heads=32),), d_model=2048, n_layers=24)


def youtu_llm_2b() -> LanguageModelConfig:
    """Youtu-LLM 2B, dense with the latent attention of DeepSeek-V3, as released: 1961.6M parameters.

    32 layers of width 2048, 16 heads, SwiGLU of 6144, a tied head over 128256 tokens. DeepSeek's own models are
    mixtures of experts.
    """
    mixer = LatentAttentionConfig(n_heads=16, head_dim=128, rope_dim=64, q_rank=1536, kv_rank=512, rotary_base=1.6e6)
    sizes = {"d_model": 2048, "n_layers": 32, "mlp_width": 6144, "vocab_size": 128256, "max_length": 131072}
    return text_model((mixer,), **sizes, norm_eps=1e-6)
