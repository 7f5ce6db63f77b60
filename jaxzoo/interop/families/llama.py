"""Llama, Mistral, Qwen2 and Qwen3: RMSNorm, rotary attention with shared key/value heads, a gated MLP."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxzoo.interop.families.common import GATED, attention_layers, attentions, only, windows_of
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, layers
from jaxzoo.interop.rope import read_rope, write_rope
from jaxzoo.interop.transforms import SAME, TRANSPOSED
from jaxzoo.models.config import LanguageModelConfig

LAYER, OURS = "model.layers.{i}", "layers.{i}"
PROJECTIONS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "out_proj"}
TABLE = (
    Row(f"{LAYER}.input_layernorm.weight", f"{OURS}.mixer_norm.scale"),
    *(Row(f"{LAYER}.self_attn.{a}.weight", f"{OURS}.mixer.{b}.kernel", TRANSPOSED) for a, b in PROJECTIONS.items()),
    Row(f"{LAYER}.post_attention_layernorm.weight", f"{OURS}.mlp_norm.scale"),
    *(
        Row(f"{LAYER}.mlp.{name}.weight", f"{OURS}.mlp.{name}.kernel", TRANSPOSED)
        for name in ("gate_proj", "up_proj", "down_proj")
    ),
)
IN_BIASES = tuple(
    Row(f"{LAYER}.self_attn.{name}.bias", f"{OURS}.mixer.{name}.bias") for name in ("q_proj", "k_proj", "v_proj")
)
OUT_BIAS = (Row(f"{LAYER}.self_attn.o_proj.bias", f"{OURS}.mixer.out_proj.bias"),)
MLP_BIASES = tuple(
    Row(f"{LAYER}.mlp.{name}.bias", f"{OURS}.mlp.{name}.bias") for name in ("gate_proj", "up_proj", "down_proj")
)
QK_NORMS = tuple(Row(f"{LAYER}.self_attn.{name}.weight", f"{OURS}.mixer.{name}.scale") for name in ("q_norm", "k_norm"))


def rows(config: LanguageModelConfig) -> Iterator[Row]:
    """All tensors of a model."""
    attention = attention_layers(config, "llama")[0]
    table = (*TABLE, *IN_BIASES * attention.qkv_bias, *OUT_BIAS * attention.out_bias, *MLP_BIASES * config.mlp_bias)
    yield Row("model.embed_tokens.weight", "embedding")
    yield from layers((*table, *QK_NORMS * (attention.qk_norm == "rms")), config.n_layers)
    yield Row("model.norm.weight", "final_norm.scale")
    if not config.tie_embeddings:
        yield Row("lm_head.weight", "head", SAME)


def _read(kind: str, fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    d, n_layers, heads = (fields.integer(f) for f in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    max_length = fields.integer("max_position_embeddings", default={"llama": 2048, "mistral": 131072}.get(kind, 32768))
    eps = fields.number("rms_norm_eps", default=1e-6)
    biased = kind == "qwen2" or (kind != "mistral" and fields.flag("attention_bias", False))
    common: dict[str, Any] = {
        "n_heads": heads,
        "n_kv_heads": fields.integer("num_key_value_heads", default=8 if kind == "mistral" else heads),
        "head_dim": fields.integer("head_dim", default=128 if kind == "qwen3" else d // heads),
        "qkv_bias": biased,
        "out_bias": biased and kind != "qwen2",
        **({"qk_norm": "rms", "qk_norm_eps": eps} if kind == "qwen3" else {}),
        **read_rope(fields, max_length=max_length),
    }
    windows: list[int | None] = [None] * n_layers
    if kind == "mistral":
        windows = [fields.optional_integer("sliding_window", 4096)] * n_layers
    elif kind != "llama":
        windows = windows_of(fields, n_layers, default=4096)
    return LanguageModelConfig(
        pattern=attentions(common, windows),
        d_model=d,
        n_layers=n_layers,
        vocab_size=fields.integer("vocab_size"),
        pad_vocab_multiple=1,
        max_length=max_length,
        mlp=fields.choice("hidden_act", of=GATED, default="silu"),
        mlp_width=fields.integer("intermediate_size"),
        mlp_bias=kind == "llama" and fields.flag("mlp_bias", False),
        norm="rms",
        norm_eps=eps,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
    )


def _write(kind: str, architecture: str, config: LanguageModelConfig) -> dict[str, Any]:
    only(config, kind, norm="rms", mlp=tuple(GATED.values()), mlp_bias=(False, True) if kind == "llama" else False)
    attention = attention_layers(config, kind)
    first, windows = attention[0], [getattr(a, "window", None) for a in attention]
    biases = {"llama": [(False, False), (True, True)], "mistral": [(False, False)], "qwen2": [(True, False)]}
    if (first.qkv_bias, first.out_bias) not in biases.get(kind, biases["llama"]):
        raise ValueError(f"qkv_bias={first.qkv_bias}, out_bias={first.out_bias}: family {kind} has no such attention")
    if (first.qk_norm == "rms") != (kind == "qwen3") or (kind == "qwen3" and first.qk_norm_eps != config.norm_eps):
        raise ValueError(f"qk_norm={first.qk_norm!r}: only family qwen3 has, and always, such a norm, with norm_eps")
    sizes = {window for window in windows if window is not None}
    if len(sizes) > 1 or (sizes and kind == "llama") or (kind == "mistral" and None in windows and sizes):
        raise ValueError(f"windows of {windows} tokens: family {kind} has no such layers")
    written = {
        "architectures": [architecture],
        "model_type": kind,
        "vocab_size": config.padded_vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.hidden_width,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": first.n_heads,
        "num_key_value_heads": first.kv_heads,
        "head_dim": first.head_width,
        "hidden_act": next(a for a, b in GATED.items() if b == config.mlp),
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": write_rope(first),
        "tie_word_embeddings": config.tie_embeddings,
    }
    if kind == "llama":
        return written | {"attention_bias": first.qkv_bias, "mlp_bias": config.mlp_bias}
    if kind == "mistral":
        return written | {"sliding_window": windows[0]}
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    slid = {"use_sliding_window": bool(sizes), "sliding_window": max(sizes, default=None), "layer_types": kinds}
    return written | slid | ({"attention_bias": first.qkv_bias} if kind == "qwen3" else {})


def _family(kind: str, architecture: str) -> Family:
    return Family(
        name=kind,
        matches=by_model_type(kind),
        read=lambda fields, shapes: _read(kind, fields, shapes),
        write=lambda config: _write(kind, architecture, config),
        rows=rows,
        left_out=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
        tied=("model.embed_tokens.weight", "lm_head.weight"),
    )


LLAMA = _family("llama", "LlamaForCausalLM")
MISTRAL = _family("mistral", "MistralForCausalLM")
QWEN2 = _family("qwen2", "Qwen2ForCausalLM")
QWEN3 = _family("qwen3", "Qwen3ForCausalLM")
