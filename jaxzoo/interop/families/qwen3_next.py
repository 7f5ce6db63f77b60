"""Qwen3-Next with dense feed-forward: Gated DeltaNet and gated attention, three to one. Experts are refused by name."""

from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import GATED, MLP, QKV, only, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm, packed
from jaxzoo.interop.rope import read_rope, rope_fields
from jaxzoo.interop.transforms import CONV, PLUS_ONE, split_heads
from jaxzoo.mixers import AttentionConfig, GatedDeltaNetConfig, MixerConfig
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "model.layers.{i}", "layers.{i}"
LINEAR, ATTENTION, MIXER = f"{LAYER}.linear_attn", f"{LAYER}.self_attn", f"{OURS}.mixer"


def _delta_rows(mixer: GatedDeltaNetConfig) -> tuple[Row, ...]:
    """Rows of the projections are grouped by key head: q, k, then v and z of its value heads; b and a likewise."""
    per_head, k = mixer.heads // mixer.n_heads, mixer.head_key
    v = per_head * mixer.head_value
    strengths = split_heads(mixer.n_heads, per_head, per_head)
    return (
        *packed(f"{LINEAR}.in_proj_qkvz", MIXER, (*QKV, "gate_proj"), split_heads(mixer.n_heads, k, k, v, v)),
        *packed(f"{LINEAR}.in_proj_ba", MIXER, ("beta_proj", "decay_proj"), strengths),
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


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    layer: Any = config.layers[i]
    return [
        *norm(f"{LAYER}.input_layernorm", f"{OURS}.mixer_norm", PLUS_ONE),
        *norm(f"{LAYER}.post_attention_layernorm", f"{OURS}.mlp_norm", PLUS_ONE),
        *linears(f"{LAYER}.mlp", f"{OURS}.mlp", MLP),
        *(_delta_rows(layer) if isinstance(layer, GatedDeltaNetConfig) else _attention_rows(layer)),
    ]


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    n_layers = fields.integer("num_hidden_layers")
    _refuse_experts(fields, n_layers)
    fields.require("attention_bias", False)
    eps = fields.number("rms_norm_eps", default=1e-6)
    max_length = fields.integer("max_position_embeddings", default=32768)
    attention = AttentionConfig(
        n_heads=fields.integer("num_attention_heads"),
        n_kv_heads=fields.integer("num_key_value_heads", default=2),
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


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    kinds = GatedDeltaNetConfig | AttentionConfig
    only(config, "qwen3_next", kinds, norm="rms", mlp="swiglu", mlp_bias=False)
    deltas = {layer for layer in config.layers if isinstance(layer, GatedDeltaNetConfig)}
    attentions = {layer for layer in config.layers if isinstance(layer, AttentionConfig)}
    if len(deltas) != 1 or len(attentions) != 1:
        raise ValueError("layers of family qwen3_next are Gated DeltaNet of one config and attention of one")
    delta, attention = deltas.pop(), attentions.pop()
    ours = (delta.gate, delta.negative, delta.norm_eps, attention.qk_norm, attention.qk_norm_eps, attention.output_gate)
    if ours != (True, False, config.norm_eps, "rms", config.norm_eps, True) or attention.qkv_bias or attention.out_bias:
        raise ValueError(
            "family qwen3_next has Gated DeltaNet with a gate and without negative eigenvalues, and gated attention "
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
        "num_experts": 0,
        "max_position_embeddings": config.max_length,
        **rope_fields(attention),
    }
    return written(config, "Qwen3NextForCausalLM", "qwen3_next", "rms_norm_eps", **own)


QWEN3_NEXT = Family(
    name="qwen3_next",
    matches=by_model_type("qwen3_next"),
    read=_read,
    write=_write,
    ends=("model.embed_tokens.weight", "model.norm", "lm_head.weight"),
    rows=rows,
    norm_scale=PLUS_ONE,
)
