"""Qwen3-Next and Qwen3.5 with dense feed-forward: Gated DeltaNet and gated attention, three to one. Experts are refused
by name. The folders of Qwen3.5 hold a model of text and pictures: the part of text is read."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import GATED, MLP, QKV, delta_and_attention, only, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm, packed
from jaxzoo.interop.rope import read_rope, rope_fields
from jaxzoo.interop.transforms import CONV, PLUS_ONE, split_heads, split_rows
from jaxzoo.mixers import AttentionConfig, GatedDeltaNetConfig, MixerConfig
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "model.layers.{i}", "layers.{i}"
LINEAR, ATTENTION, MIXER = f"{LAYER}.linear_attn", f"{LAYER}.self_attn", f"{OURS}.mixer"


def _projection_rows(mixer: GatedDeltaNetConfig) -> list[Row]:
    """Rows of the projections are grouped by key head: q, k, then v and z of its value heads; b and a likewise."""
    per_head, k = mixer.heads // mixer.n_heads, mixer.head_key
    v = per_head * mixer.head_value
    strengths = split_heads(mixer.n_heads, per_head, per_head)
    return [
        *packed(f"{LINEAR}.in_proj_qkvz", MIXER, (*QKV, "gate_proj"), split_heads(mixer.n_heads, k, k, v, v)),
        *packed(f"{LINEAR}.in_proj_ba", MIXER, ("beta_proj", "decay_proj"), strengths),
    ]


def _separate_rows(mixer: GatedDeltaNetConfig) -> list[Row]:
    """Projections of Qwen3.5."""
    names = {"in_proj_z": "gate_proj", "in_proj_b": "beta_proj", "in_proj_a": "decay_proj"}
    split = split_rows(mixer.keys, mixer.keys, mixer.values)
    return [*packed(f"{LINEAR}.in_proj_qkv", MIXER, QKV, split), *linears(LINEAR, MIXER, names)]


def _delta_rows(mixer: GatedDeltaNetConfig, kind: str) -> tuple[Row, ...]:
    return (
        *(_projection_rows(mixer) if kind == "qwen3_next" else _separate_rows(mixer)),
        Row(f"{LINEAR}.conv1d.weight", f"{MIXER}.conv.taps", CONV),
        Row(f"{LINEAR}.A_log", f"{MIXER}.a_log"),
        Row(f"{LINEAR}.dt_bias", f"{MIXER}.dt_bias"),
        *norm(f"{LINEAR}.norm", f"{MIXER}.norm"),
        *linears(LINEAR, MIXER, ("out_proj",)),
    )


def _attention_rows(mixer: AttentionConfig) -> tuple[Row, ...]:
    """Rows of q_proj are grouped by head: the query, then its gate."""
    gated = split_heads(mixer.n_heads, mixer.head_width, mixer.head_width)
    return (
        *packed(f"{ATTENTION}.q_proj", MIXER, ("q_proj", "gate_proj"), gated),
        *linears(ATTENTION, MIXER, {"k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "out_proj"}),
        *(row for n in ("q_norm", "k_norm") for row in norm(f"{ATTENTION}.{n}", f"{MIXER}.{n}", PLUS_ONE)),
    )


def _rows(kind: str, config: LanguageModelConfig, i: int) -> list[Row]:
    layer: Any = config.layers[i]
    return [
        *norm(f"{LAYER}.input_layernorm", f"{OURS}.mixer_norm", PLUS_ONE),
        *norm(f"{LAYER}.post_attention_layernorm", f"{OURS}.mlp_norm", PLUS_ONE),
        *linears(f"{LAYER}.mlp", f"{OURS}.mlp", MLP),
        *(_delta_rows(layer, kind) if isinstance(layer, GatedDeltaNetConfig) else _attention_rows(layer)),
    ]


def _read_text(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    """Reads Qwen3.5, by itself or as a part of a model of text and pictures."""
    text = fields.section("text_config")
    if text is None:
        return _read(fields, shapes, "qwen3_5")
    fields.ignore("vision_config")
    text.content = {"tie_word_embeddings": fields.flag("tie_word_embeddings", False), **text.content}
    found = _read(text, shapes, "qwen3_5")
    text.check_all_read()
    return found


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]], kind: str = "qwen3_next") -> LanguageModelConfig:
    n_layers = fields.integer("num_hidden_layers")
    if kind == "qwen3_next":
        _refuse_experts(fields, n_layers)
    else:
        fields.require("attn_output_gate", True)
        fields.ignore("mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    fields.require("attention_bias", False)
    eps = fields.number("rms_norm_eps", default=1e-6)
    max_length = fields.integer("max_position_embeddings", default=32768)
    attention = AttentionConfig(
        n_heads=fields.integer("num_attention_heads"),
        n_kv_heads=fields.integer("num_key_value_heads", default=2 if kind == "qwen3_next" else 4),
        head_dim=fields.integer("head_dim", default=256),
        qk_norm="rms",
        qk_norm_eps=eps,
        output_gate=True,
        **read_rope(fields, max_length=max_length, fraction=0.25),
    )
    key_heads = fields.integer("linear_num_key_heads", default=16)
    value_heads = fields.integer("linear_num_value_heads", default=32)
    delta = GatedDeltaNetConfig(
        n_heads=key_heads,
        n_value_heads=value_heads,
        key_width=key_heads * fields.integer("linear_key_head_dim", default=128),
        value_width=value_heads * fields.integer("linear_value_head_dim", default=128),
        n_taps=fields.integer("linear_conv_kernel_dim", default=4),
        norm_eps=eps,
    )
    of: dict[str, MixerConfig] = {"linear_attention": delta, "full_attention": attention}
    every = fields.integer("full_attention_interval", default=4)
    kinds = fields.words("layer_types", n_layers, of)
    return read_model(
        fields,
        kinds or [delta if (i + 1) % every else attention for i in range(n_layers)],
        tied=False,
        max_length=max_length,
        mlp=fields.choice("hidden_act", of={"silu": GATED["silu"]}, default="silu"),
        mlp_width=fields.integer("intermediate_size"),
        norm="rms",
        norm_eps=eps,
    )


def _refuse_experts(fields: Fields, n_layers: int) -> None:
    experts, every = fields.integer("num_experts", default=512, low=0), fields.integer("decoder_sparse_step", default=1)
    dense = fields.optional("mlp_only_layers") or []
    if experts and any((i + 1) % every == 0 and i not in dense for i in range(n_layers)):
        fields.refuse("num_experts", "must be 0: a mixture of experts is not computed by this library")
    fields.ignore("moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok", "norm_topk_prob")


def _write(kind: str, config: LanguageModelConfig) -> dict[str, Any]:
    kinds = GatedDeltaNetConfig | AttentionConfig
    only(config, kind, kinds, norm="rms", mlp="swiglu", mlp_bias=False)
    delta, attention = delta_and_attention(config, kind)
    ours = (delta.gate, delta.negative, delta.norm_eps, attention.qk_norm, attention.qk_norm_eps, attention.output_gate)
    if ours != (True, False, config.norm_eps, "rms", config.norm_eps, True) or attention.qkv_bias or attention.out_bias:
        raise ValueError(
            f"family {kind} has Gated DeltaNet with a gate and without negative eigenvalues, and gated attention "
            "with a norm of queries and keys, no biases, one norm_eps"
        )
    types = ["linear_attention" if isinstance(x, GatedDeltaNetConfig) else "full_attention" for x in config.layers]
    own = {
        "intermediate_size": config.hidden_width,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_width,
        "linear_num_key_heads": delta.n_heads,
        "linear_num_value_heads": delta.heads,
        "linear_key_head_dim": delta.head_key,
        "linear_value_head_dim": delta.head_value,
        "linear_conv_kernel_dim": delta.n_taps,
        "layer_types": types,
        "max_position_embeddings": config.max_length,
        **rope_fields(attention),
    }
    if kind == "qwen3_next":
        return written(config, "Qwen3NextForCausalLM", kind, "rms_norm_eps", num_experts=0, **own)
    return written(config, "Qwen3_5ForCausalLM", "qwen3_5_text", "rms_norm_eps", **own)


QWEN3_NEXT = Family(
    name="qwen3_next",
    matches=by_model_type("qwen3_next"),
    read=_read,
    write=lambda config: _write("qwen3_next", config),
    ends=("model.embed_tokens.weight", "model.norm", "lm_head.weight"),
    rows=lambda config, i: _rows("qwen3_next", config, i),
    norm_scale=PLUS_ONE,
)
QWEN3_5 = dataclasses.replace(
    QWEN3_NEXT,
    name="qwen3_5",
    matches=by_model_type("qwen3_5_text", "qwen3_5"),
    read=_read_text,
    write=lambda config: _write("qwen3_5", config),
    rows=lambda config, i: _rows("qwen3_5", config, i),
    renames={r"^model\.language_model\.": "model."},
    left_out=(r"model\.visual\..*", r"mtp\..*"),
)
