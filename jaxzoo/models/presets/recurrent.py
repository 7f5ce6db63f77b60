"""Models of text with the recurrent mixers of 2024 to 2026, and hybrids of them with attention.

Sizes are those of the papers where they print them, and of the authors' released configurations otherwise; each
docstring says which. No preset here has been trained with this library.
"""

import dataclasses

from jaxzoo.mixers import (
    AttentionConfig,
    CombaConfig,
    DeltaNetConfig,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GatedSlotAttentionConfig,
    HGRN2Config,
    HGRNConfig,
    KimiDeltaAttentionConfig,
    Mamba2Config,
    Mamba3Config,
    MambaConfig,
    MesaNetConfig,
    MixerConfig,
    MLSTMConfig,
    RGLRUConfig,
    RWKV4ChannelMixConfig,
    RWKV6TimeMixConfig,
    RWKV7ChannelMixConfig,
    RWKV7TimeMixConfig,
    SlidingWindowAttentionConfig,
    TTTConfig,
)
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import fla_model, rwkv_model, text_model

WORLD = {"vocab_size": 65536, "pad_vocab_multiple": 8, "embed_norm": True}
"""Fields that RWKV-6 and 7 share: the World vocabulary, and a norm after the embedding."""


def mamba2_370m() -> LanguageModelConfig:
    """Mamba-2 370M as released (state-spaces/mamba2-370m): 368.3M parameters; 48 layers of width 1024 without an MLP.

    States of 128, heads of 64 channels, GPT-NeoX's vocabulary of 50277.
    """
    rows = {"vocab_size": 50277, "pad_vocab_multiple": 16}
    return text_model((Mamba2Config(),), d_model=1024, n_layers=48, mlp="none", **rows)


def mamba2_1_3b() -> LanguageModelConfig:
    """Mamba-2 1.3B as released (state-spaces/mamba2-1.3b): 1344M parameters; 48 layers of width 2048."""
    return dataclasses.replace(mamba2_370m(), d_model=2048)


def mamba3_1_4b() -> LanguageModelConfig:
    """Mamba-3 (fla's default configuration, SISO): 1387.1M parameters; 48 layers of width 2048 without an MLP.

    States of 128, heads of 64 channels, an untied head over 32000 tokens.
    """
    rows = {"vocab_size": 32000, "tie_embeddings": False}
    return text_model((Mamba3Config(activation="softplus"),), d_model=2048, n_layers=48, mlp="none", **rows)


def delta_net_340m() -> LanguageModelConfig:
    """DeltaNet 340M in fla's configuration: 374.4M parameters; 24 layers of width 1024, 8 heads.

    SwiGLU of 8/3 d, an untied head over 32000 tokens.
    """
    return fla_model((DeltaNetConfig(n_heads=8, norm_eps=1e-6),), d_model=1024, n_layers=24)


def delta_net_1_3b() -> LanguageModelConfig:
    """DeltaNet 1.3B (arXiv 2406.06484, sec. 4, fla): 1365.7M parameters; 24 layers of width 2048, 16 heads."""
    return fla_model((DeltaNetConfig(n_heads=16, norm_eps=1e-6),), d_model=2048, n_layers=24)


def gated_delta_net_340m() -> LanguageModelConfig:
    """Gated DeltaNet, fla's 1.3B configuration, half as wide: 379.8M parameters; 21 layers of width 1024, 3 heads."""
    return fla_model((_gated_delta_net(1024),), d_model=1024, n_layers=21)


def gated_delta_net_1_3b() -> LanguageModelConfig:
    """Gated DeltaNet 1.3B (arXiv 2412.06464, in fla's configuration): 1387.3M parameters; 21 layers of width 2048.

    6 heads of 256 keys and 512 values.
    """
    return fla_model((_gated_delta_net(2048),), d_model=2048, n_layers=21)


def _gated_delta_net(d_model: int) -> GatedDeltaNetConfig:
    keys = 3 * d_model // 4
    return GatedDeltaNetConfig(n_heads=keys // 256, key_width=keys, value_width=2 * keys, norm_eps=1e-6)


def kimi_delta_attention_1_3b() -> LanguageModelConfig:
    """Kimi Delta Attention (fla's default configuration): 1390.9M parameters; 24 layers of width 2048, 16 heads.

    The paper's own models are mixtures of experts.
    """
    return fla_model((KimiDeltaAttentionConfig(n_heads=16, norm_eps=1e-6),), d_model=2048, n_layers=24)


def comba_1_3b() -> LanguageModelConfig:
    """Comba (fla's default configuration): 1387.3M parameters; 21 layers of width 2048.

    6 heads of 256 keys and 512 values.
    """
    comba = CombaConfig(n_heads=6, key_width=1536, value_width=3072, norm_eps=1e-6)
    return fla_model((comba,), d_model=2048, n_layers=21)


def gated_delta_product_1_6b() -> LanguageModelConfig:
    """Gated DeltaProduct of two updates (arXiv 2502.10297, sizes of fla's configuration): 1586.2M parameters.

    21 layers of width 2048, 6 heads of 256 keys and 512 values.
    """
    mixer = GatedDeltaProductConfig(n_heads=6, key_width=1536, value_width=3072, norm_eps=1e-6)
    return fla_model((mixer,), d_model=2048, n_layers=21)


def mesa_net_1_3b() -> LanguageModelConfig:
    """MesaNet (fla's default configuration): 1366.3M parameters; 24 layers of width 2048, 16 heads of 128."""
    return fla_model((MesaNetConfig(n_heads=16, norm_eps=1e-6),), d_model=2048, n_layers=24)


def ttt_linear_1_3b() -> LanguageModelConfig:
    """TTT-Linear 1.3B (arXiv 2407.04620, in the authors' configuration "1b"): 1284.9M parameters.

    24 layers of width 2048, 32 heads, SwiGLU of 5504, a tied head over 32000 tokens, no convolutions.
    """
    sizes = {"d_model": 2048, "n_layers": 24, "mlp_width": 5504, "vocab_size": 32000, "norm_eps": 1e-6}
    return text_model((TTTConfig(n_heads=32),), **sizes)


def xlstm_7b() -> LanguageModelConfig:
    """xLSTM 7B as released (arXiv 2503.13427): 6865.4M parameters; 32 layers of width 4096, 8 heads.

    Heads of 256 keys and 512 values, SwiGLU of 10944, an untied head over 50304 tokens. Deviation: the logits are not
    capped (there at 30).
    """
    mlstm = MLSTMConfig(form="7b", n_heads=8)
    rows = {"vocab_size": 50304, "max_length": 8192, "norm_eps": 1e-6, "tie_embeddings": False}
    return text_model((mlstm,), d_model=4096, n_layers=32, mlp_width=10944, **rows)


def hgrn_1_3b() -> LanguageModelConfig:
    """HGRN (fla's default configuration): 1364.3M parameters; 24 layers of width 2048.

    Its lower bounds, one more parameter there, do not learn here.
    """
    layers = tuple(HGRNConfig(layer_index=i, n_layers=24, norm_eps=1e-6) for i in range(24))
    return fla_model(layers, d_model=2048, n_layers=24)


def hgrn2_1_3b() -> LanguageModelConfig:
    """HGRN2 1.3B (arXiv 2404.07904, fla): 1364.3M parameters; 24 layers of width 2048, heads of 128."""
    layers = tuple(HGRN2Config(n_heads=16, layer_index=i, n_layers=24, scaled=True, norm_eps=1e-6) for i in range(24))
    return fla_model(layers, d_model=2048, n_layers=24)


def gsa_1_3b() -> LanguageModelConfig:
    """GSA 1.3B (arXiv 2409.07146, in fla's configuration): 1376.9M parameters; 24 layers of width 2048.

    4 heads of 64 slots.
    """
    return fla_model((GatedSlotAttentionConfig(n_heads=4, n_slots=64),), d_model=2048, n_layers=24)


def rwkv6_1_6b() -> LanguageModelConfig:
    """RWKV-6 "Finch" 1.6B (arXiv 2404.05892): 1599.9M parameters; 24 layers of width 2048.

    A layer is a time mix of 32 heads and a channel mix of 3.5 d. Untied head.
    """
    pattern: list[MixerConfig] = []
    for i in range(24):
        place = {"layer_index": i, "n_layers": 24, "projections": "release"}
        channel_mix = RWKV4ChannelMixConfig(hidden_width=7168, share_power=3, **place)
        pattern += [RWKV6TimeMixConfig(n_heads=32, **place), channel_mix]
    return rwkv_model(pattern, d_model=2048, **WORLD)


def rwkv7_0_2b() -> LanguageModelConfig:
    """RWKV-7 "Goose" 0.19B (arXiv 2503.14456): 191.0M parameters; 12 layers of width 768."""
    return _rwkv7(d_model=768, n_layers=12, ranks=(64, 64, 32, 128))


def rwkv7_0_4b() -> LanguageModelConfig:
    """RWKV-7 "Goose" 0.4B (arXiv 2503.14456): 450.8M parameters; 24 layers of width 1024."""
    return _rwkv7(d_model=1024, n_layers=24, ranks=(64, 64, 32, 128))


def rwkv7_1_5b() -> LanguageModelConfig:
    """RWKV-7 "Goose" 1.5B (arXiv 2503.14456): 1527.4M parameters; 24 layers of width 2048, heads of 64, untied head."""
    return _rwkv7(d_model=2048, n_layers=24, ranks=(96, 96, 64, 256))


def _rwkv7(*, d_model: int, n_layers: int, ranks: tuple[int, int, int, int]) -> LanguageModelConfig:
    names = ("decay_rank", "rate_rank", "value_rank", "gate_rank")
    pattern: list[MixerConfig] = []
    for i in range(n_layers):
        place = {"layer_index": i, "n_layers": n_layers, "projections": "release"}
        time_mix = RWKV7TimeMixConfig(n_heads=d_model // 64, **place, **dict(zip(names, ranks, strict=True)))
        pattern += [time_mix, RWKV7ChannelMixConfig(**place)]
    return rwkv_model(pattern, d_model=d_model, **WORLD)


def griffin_400m() -> LanguageModelConfig:
    """Griffin 400M (arXiv 2402.19427, App. B): 404.3M parameters; 12 layers of width 1536."""
    return _griffin(d_model=1536, inner=2048, n_layers=12)


def griffin_1_3b() -> LanguageModelConfig:
    """Griffin 1.3B (arXiv 2402.19427, App. B): 1308.1M parameters; 24 layers of width 2048 and 2560 channels.

    Two recurrent blocks per local attention (window of 1024 tokens, one key-value head), GeGLU of 3 d, a tied head over
    32000 tokens. Deviation: no biases in the MLP.
    """
    return _griffin(d_model=2048, inner=2560, n_layers=24)


def _griffin(*, d_model: int, inner: int, n_layers: int) -> LanguageModelConfig:
    recurrent = RGLRUConfig(inner_width=inner, n_heads=16)
    local = SlidingWindowAttentionConfig(n_heads=d_model // 128, n_kv_heads=1, window=1024)
    return text_model(
        (recurrent, recurrent, local),
        d_model=d_model,
        n_layers=n_layers,
        mlp="geglu",
        mlp_width=3 * d_model,
        vocab_size=32000,
        pad_vocab_multiple=8,
    )


def samba_like_420m() -> LanguageModelConfig:
    """Hybrid after Samba (arXiv 2406.07522), with sizes of our own: 421.8M parameters; 12 layers of width 1536.

    Mamba alternates with a sliding window of 2048 tokens; SwiGLU of 8/3 d.
    """
    pattern = (MambaConfig(d_state=16), SlidingWindowAttentionConfig(n_heads=12, window=2048))
    rows = {"vocab_size": 32000, "pad_vocab_multiple": 8, "max_length": 4096}
    return text_model(pattern, d_model=1536, n_layers=12, mlp_width=4096, **rows)


def qwen3_next_like_400m() -> LanguageModelConfig:
    """Dense hybrid after Qwen3-Next, with sizes of our own: 408.0M parameters; 24 layers of width 1024.

    Three Gated DeltaNets (8 key and 16 value heads of 128) per full attention (8 heads, 2 key-value heads). Deviations:
    a SwiGLU instead of experts; the attention has no output gate and no norm of queries and keys.
    """
    delta = GatedDeltaNetConfig(n_heads=8, n_value_heads=16, key_width=1024, value_width=2048, norm_eps=1e-6)
    attention = AttentionConfig(n_heads=8, n_kv_heads=2, positions="rotary", rotary_fraction=0.25)
    rows = {"vocab_size": 32000, "pad_vocab_multiple": 8, "norm_eps": 1e-6}
    return text_model((delta, delta, delta, attention), d_model=1024, n_layers=24, mlp_width=2816, **rows)
