"""Llama, Mistral, Qwen2 and Qwen3: RMSNorm, rotary attention with shared key/value heads, a gated MLP."""

from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import GATED, MLP, QKV, attention_layers, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm
from jaxzoo.interop.rope import read_rope, rope_fields
from jaxzoo.mixers import AttentionConfig, MixerConfig, SlidingWindowAttentionConfig
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "model.layers.{i}", "layers.{i}"
PROJECTIONS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "out_proj"}


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    attention, mlp, mixer = f"{LAYER}.self_attn", f"{LAYER}.mlp", f"{OURS}.mixer"
    layer: Any = config.layers[i]
    qk_norms = ("q_norm", "k_norm") if layer.qk_norm == "rms" else ()
    return [
        *norm(f"{LAYER}.input_layernorm", f"{OURS}.mixer_norm"),
        *linears(attention, mixer, PROJECTIONS),
        *norm(f"{LAYER}.post_attention_layernorm", f"{OURS}.mlp_norm"),
        *linears(mlp, f"{OURS}.mlp", MLP, bias=config.mlp_bias),
        *linears(attention, mixer, QKV, kernel=False, bias=layer.qkv_bias),
        *linears(attention, mixer, {"o_proj": "out_proj"}, kernel=False, bias=layer.out_bias),
        *(row for n in qk_norms for row in norm(f"{attention}.{n}", f"{mixer}.{n}")),
    ]


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
        windows = _windows(fields, n_layers)
    layers: list[MixerConfig] = [
        AttentionConfig(**common) if window is None else SlidingWindowAttentionConfig(**common, window=window)
        for window in windows
    ]
    return read_model(
        fields,
        layers[:1] if len(set(layers)) == 1 else layers,
        tied=False,
        max_length=max_length,
        mlp=fields.choice("hidden_act", of=GATED, default="silu"),
        mlp_width=fields.integer("intermediate_size"),
        mlp_bias=kind == "llama" and fields.flag("mlp_bias", False),
        norm="rms",
        norm_eps=eps,
    )


def _windows(fields: Fields, n_layers: int) -> list[int | None]:
    """Returns the window of every layer by Qwen's fields: `use_sliding_window`, `max_window_layers`, `layer_types`."""
    window = fields.optional_integer("sliding_window", 4096)
    first = fields.integer("max_window_layers", default=28, low=0)
    used = fields.flag("use_sliding_window", False)
    kinds = fields.words("layer_types", n_layers, {"full_attention": False, "sliding_attention": True})
    if kinds is None:
        kinds = tuple(used and i >= first for i in range(n_layers))
    if any(kinds) and window is None:
        fields.refuse("sliding_window", "must be given where layers have a window")
    return [window if kind else None for kind in kinds]


def _write(kind: str, architecture: str, config: LanguageModelConfig) -> dict[str, Any]:
    mlp_bias = (False, True) if kind == "llama" else False
    attention = attention_layers(config, kind, norm="rms", mlp=tuple(GATED.values()), mlp_bias=mlp_bias)
    first, windows = attention[0], [getattr(a, "window", None) for a in attention]
    biases = {"llama": [(False, False), (True, True)], "mistral": [(False, False)], "qwen2": [(True, False)]}
    if (first.qkv_bias, first.out_bias) not in biases.get(kind, biases["llama"]):
        raise ValueError(f"qkv_bias={first.qkv_bias}, out_bias={first.out_bias}: family {kind} has no such attention")
    if (first.qk_norm == "rms") != (kind == "qwen3") or (kind == "qwen3" and first.qk_norm_eps != config.norm_eps):
        raise ValueError(f"qk_norm={first.qk_norm!r}: only family qwen3 has, and always, such a norm, with norm_eps")
    sizes = {window for window in windows if window is not None}
    if len(sizes) > 1 or (sizes and kind == "llama") or (kind == "mistral" and None in windows and sizes):
        raise ValueError(f"windows of {windows} tokens: family {kind} has no such layers")
    own: dict[str, Any] = {
        "intermediate_size": config.hidden_width,
        "num_attention_heads": first.n_heads,
        "num_key_value_heads": first.kv_heads,
        "head_dim": first.head_width,
        "hidden_act": next(a for a, b in GATED.items() if b == config.mlp),
        "max_position_embeddings": config.max_length,
        **rope_fields(first),
    }
    if kind in ("llama", "qwen3"):
        own["attention_bias"] = first.qkv_bias
    if kind == "llama":
        own["mlp_bias"] = config.mlp_bias
    elif kind == "mistral":
        own["sliding_window"] = windows[0]
    else:
        own |= {"use_sliding_window": bool(sizes), "sliding_window": max(sizes, default=None)}
        # Before 4.53 transformers read no kinds of layers, and took layers from 28 on by default.
        own["max_window_layers"] = next((i for i, window in enumerate(windows) if window is not None), len(windows))
        own["layer_types"] = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return written(config, architecture, kind, "rms_norm_eps", **own)


def _family(kind: str, architecture: str) -> Family:
    return Family(
        name=kind,
        matches=by_model_type(kind),
        read=lambda fields, shapes: _read(kind, fields, shapes),
        write=lambda config: _write(kind, architecture, config),
        ends=("model.embed_tokens.weight", "model.norm", "lm_head.weight"),
        rows=rows,
        left_out=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    )


LLAMA = _family("llama", "LlamaForCausalLM")
MISTRAL = _family("mistral", "MistralForCausalLM")
QWEN2 = _family("qwen2", "Qwen2ForCausalLM")
QWEN3 = _family("qwen3", "Qwen3ForCausalLM")
