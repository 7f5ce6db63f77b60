"""OLMo Hybrid: Gated DeltaNet, and attention whose layers norm the outputs of their branches, three to one.

Queries and keys are normalized over all heads together; the released models have no positions. transformers 5.24 saves
the three convolutions of a layer in equal parts, whatever their widths, and one norm of attention layers by the name of
another: `read_names` reverts both.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxzoo.interop.families.common import MLP, QKV, delta_and_attention, only, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm
from jaxzoo.interop.rope import read_rope, rope_fields
from jaxzoo.interop.transforms import joined_taps
from jaxzoo.mixers import AttentionConfig, GatedDeltaNetConfig, MixerConfig
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "model.layers.{i}", "layers.{i}"
LINEAR, ATTENTION, MIXER = f"{LAYER}.linear_attn", f"{LAYER}.self_attn", f"{OURS}.mixer"
CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")
DELTA_EPS = 1e-5
"""eps in the norm of Gated DeltaNet's heads; no field of config.json."""


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    layer = config.layers[i]
    is_delta = isinstance(layer, GatedDeltaNetConfig)
    norms = ("attention_layer_norm", "feedforward_layer_norm")
    norms = norms if is_delta else ("post_attention_layernorm", "post_feedforward_layernorm")
    found = [
        *norm(f"{LAYER}.{norms[0]}", f"{OURS}.mixer_norm"),
        *norm(f"{LAYER}.{norms[1]}", f"{OURS}.mlp_norm"),
        *linears(f"{LAYER}.mlp", f"{OURS}.mlp", MLP),
    ]
    if not is_delta:
        norms_of_heads = (row for n in ("q_norm", "k_norm") for row in norm(f"{ATTENTION}.{n}", f"{MIXER}.{n}"))
        return [*found, *linears(ATTENTION, MIXER, {n: n for n in QKV} | {"o_proj": "out_proj"}), *norms_of_heads]
    names = {n: n for n in QKV}
    names |= {"g_proj": "gate_proj", "b_proj": "beta_proj", "a_proj": "decay_proj", "o_proj": "out_proj"}
    taps = joined_taps(layer.keys, layer.keys, layer.values)
    return [
        *found,
        *linears(LINEAR, MIXER, names),
        Row(tuple(f"{LINEAR}.{n}.weight" for n in CONVOLUTIONS), f"{MIXER}.conv.taps", taps),
        Row(f"{LINEAR}.A_log", f"{MIXER}.a_log"),
        Row(f"{LINEAR}.dt_bias", f"{MIXER}.dt_bias"),
        *norm(f"{LINEAR}.o_norm", f"{MIXER}.norm"),
    ]


def read_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors of a folder by the names, and with the shapes, of the released models: convolutions of q, k
    and v each of its own width, and norms by their places in their kind of layer."""
    found = dict(tensors)
    newer = {"input_layernorm": "attention_layer_norm", "post_attention_layernorm": "feedforward_layer_norm"}
    for prefix in sorted({name[: name.index(".linear_attn.")] for name in tensors if ".linear_attn." in name}):
        for new, old in newer.items():
            _rename(found, f"{prefix}.{new}.weight", f"{prefix}.{old}.weight")
        mixer = f"{prefix}.linear_attn"
        names = [f"{mixer}.{n}.weight" for n in CONVOLUTIONS]
        parts = [found.pop(name) for name in (*names, f"{mixer}.conv1d.weight") if name in found]
        widths = [found[name].shape[0] for n in QKV if (name := f"{mixer}.{n}.weight") in found]
        if parts and len(widths) == len(QKV):
            found |= zip(names, np.split(np.concatenate(parts), np.cumsum(widths)[:-1]), strict=True)
    for prefix in sorted({name[: name.index(".self_attn.")] for name in tensors if ".self_attn." in name}):
        _rename(found, f"{prefix}.feedforward_layer_norm.weight", f"{prefix}.post_attention_layernorm.weight")
    return found


def _rename(tensors: dict[str, Any], old: str, new: str) -> None:
    if old in tensors and new not in tensors:
        tensors[new] = tensors.pop(old)


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    fields.require("attention_bias", False)
    fields.require("hidden_act", "silu")
    fields.ignore("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")
    d, n_layers, heads = (fields.integer(f) for f in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    max_length = fields.integer("max_position_embeddings", default=65536)
    eps = fields.number("rms_norm_eps", default=1e-6)
    attention = AttentionConfig(
        n_heads=heads,
        n_kv_heads=fields.optional_integer("num_key_value_heads", heads),
        qk_norm="rms_all_heads",
        qk_norm_eps=eps,
        **_positions(fields, max_length),
    )
    key_heads = fields.integer("linear_num_key_heads", default=heads)
    value_heads = fields.integer("linear_num_value_heads", default=heads)
    head_key = fields.integer("linear_key_head_dim", default=int(0.75 * d / key_heads))
    delta = GatedDeltaNetConfig(
        n_heads=key_heads,
        n_value_heads=value_heads,
        key_width=key_heads * head_key,
        value_width=value_heads * fields.integer("linear_value_head_dim", default=2 * head_key),
        n_taps=fields.integer("linear_conv_kernel_dim", default=4),
        negative=fields.flag("linear_allow_neg_eigval", True),
        norm_eps=DELTA_EPS,
    )
    of: dict[str, MixerConfig] = {"linear_attention": delta, "full_attention": attention}
    kinds = fields.words("layer_types", n_layers, of)
    return read_model(
        fields,
        kinds or [attention if i % 4 == 3 or i == n_layers - 1 < 3 else delta for i in range(n_layers)],
        tied=False,
        max_length=max_length,
        mlp="swiglu",
        mlp_width=fields.integer("intermediate_size"),
        norm="rms",
        norm_eps=eps,
        attention_post_norm=True,
    )


def _positions(fields: Fields, max_length: int) -> dict[str, Any]:
    """Reads rotary positions; a base of null, there or in `rope_parameters`, means none, as in the released models."""
    section = fields.section("rope_parameters")
    of = fields.content if section is None or "rope_theta" not in section.content else section.content
    if of.get("rope_theta", 0) is None:
        fields.ignore("rope_theta")
        return {"positions": "none"}
    return read_rope(fields, max_length=max_length)


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    kinds = GatedDeltaNetConfig | AttentionConfig
    only(config, "olmo_hybrid", kinds, norm="rms", mlp="swiglu", mlp_bias=False, attention_post_norm=True)
    delta, attention = delta_and_attention(config, "olmo_hybrid")
    ours = (delta.gate, delta.norm_eps, attention.qk_norm, attention.qk_norm_eps, attention.head_width)
    plain = (attention.output_gate, attention.qkv_bias, attention.out_bias)
    width = config.d_model // attention.n_heads
    if ours != (True, DELTA_EPS, "rms_all_heads", config.norm_eps, width) or any(plain):
        raise ValueError(
            f"family olmo_hybrid has Gated DeltaNet with a gate and norm_eps={DELTA_EPS}, and attention of heads of "
            f"{width} channels with a norm of all heads' queries and keys with the model's norm_eps, no biases, no gate"
        )
    no_positions = {"rope_theta": None, "rope_parameters": {"rope_theta": None, "rope_type": "default"}}
    own = {
        "pad_token_id": None,  # transformers' default is an id of the released vocabulary
        "eos_token_id": None,
        "intermediate_size": config.hidden_width,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.kv_heads,
        "linear_num_key_heads": delta.n_heads,
        "linear_num_value_heads": delta.heads,
        "linear_key_head_dim": delta.head_key,
        "linear_value_head_dim": delta.head_value,
        "linear_conv_kernel_dim": delta.n_taps,
        "linear_allow_neg_eigval": delta.negative,
        "layer_types": ["linear_attention" if layer == delta else "full_attention" for layer in config.layers],
        "max_position_embeddings": config.max_length,
        **(no_positions if attention.positions == "none" else rope_fields(attention)),
    }
    return written(config, "OlmoHybridForCausalLM", "olmo_hybrid", "rms_norm_eps", **own)


OLMO_HYBRID = Family(
    name="olmo_hybrid",
    matches=by_model_type("olmo_hybrid"),
    read=_read,
    write=_write,
    ends=("model.embed_tokens.weight", "model.norm", "lm_head.weight"),
    rows=rows,
    prepare=read_names,
)
