"""Models of flash-linear-attention: GLA, DeltaNet, Gated DeltaNet, HGRN2 and RetNet; `fla_rwkv6.py` has RWKV-6.

All have RMSNorms and a gated MLP. Hybrids with attention (`attn`), shared key/value heads and attention residuals are
refused. GLA and RetNet have no short convolutions, delta rules always have them. RetNet's scale of the normalized heads
is multiplied into `o_proj`, and written as ones; HGRN2 has one parameter for the lower bounds of all layers.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxzoo.interop.families.common import MLP, QKV, only, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm
from jaxzoo.interop.transforms import Transform, joined_taps
from jaxzoo.mixers import (
    DeltaNetConfig,
    GatedDeltaNetConfig,
    GatedLinearAttentionConfig,
    HGRN2Config,
    MixerConfig,
    RetNetConfig,
)
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "model.layers.{i}", "layers.{i}"
ATTN, MIXER = f"{LAYER}.attn", f"{OURS}.mixer"
ENDS = ("model.embeddings.weight", "model.norm", "lm_head.weight")
SAME_NAMES = {name: name for name in QKV} | {"o_proj": "out_proj"}
SIZES = {"key_width": "keys", "value_width": "values", "hidden_width": "hidden", "n_value_heads": "heads"}
"""Properties with the defaults of fields filled in."""
WITHOUT_EFFECT = ("init_std", "out_init_std", "projections", "share_power", "chunk_size")
"""Fields of initial values and of speed."""
HGRN2_EPS = 1e-5
"""HGRN2's norm of the heads, which does not read `norm_eps`."""


class Kind(NamedTuple):
    """Mixer of a family."""

    architecture: str
    mixer: type[MixerConfig]
    read: Callable[[Fields, int, float], Any]
    """Returns the mixer by its fields, `hidden_size` and `norm_eps`."""
    write: Callable[[Any], dict[str, Any]]
    """Returns the fields of a mixer."""
    rows: Callable[[Any, LanguageModelConfig, int], list[Row]]
    hidden_ratio: float = 4.0


def width(fields: Fields, name: str, d: int, default: float) -> int:
    return int(d * fields.number(name, default=default))


def _plain_heads(fields: Fields) -> int:
    """Refuses options of linear attention that no mixer of ours has; returns the heads."""
    fields.require("use_short_conv", False)
    fields.require("use_output_gate", True)
    fields.require("feature_map", None)
    fields.ignore("conv_size")
    heads = fields.integer("num_heads", default=8 if fields.content["model_type"] == "retnet" else 4)
    fields.require("num_kv_heads", None, heads)
    return heads


def _read_gla(fields: Fields, d: int, eps: float) -> GatedLinearAttentionConfig:
    for name, value in (("use_gk", True), ("use_gv", False), ("clamp_min", None)):
        fields.require(name, value)
    return GatedLinearAttentionConfig.release(
        n_heads=_plain_heads(fields),
        key_width=width(fields, "expand_k", d, 0.5),
        value_width=width(fields, "expand_v", d, 1.0),
        norm_eps=eps,
    )


def _write_gla(mixer: GatedLinearAttentionConfig) -> dict[str, Any]:
    return {"num_heads": mixer.n_heads, "expand_k": mixer.keys / mixer.width, "expand_v": mixer.values / mixer.width}


def _gla_rows(mixer: GatedLinearAttentionConfig, config: LanguageModelConfig, i: int) -> list[Row]:
    names = {"g_proj": "gate_proj", "gk_proj.0": "decay_down", "gk_proj.1": "decay_up"}
    return [
        *linears(ATTN, MIXER, SAME_NAMES | names),
        Row(f"{ATTN}.gk_proj.1.bias", f"{MIXER}.decay_up.bias"),
        Row(f"{ATTN}.g_norm_swish_gate.weight", f"{MIXER}.norm_scale"),
    ]


def _read_delta(fields: Fields, d: int, eps: float) -> DeltaNetConfig:
    for name in ("use_short_conv", "use_beta", "use_output_norm"):
        fields.require(name, True)
    activations: Any = {name: name for name in ("silu", "relu", "elu", "identity")}
    norms: Any = {name: name for name in ("l2", "sum")}
    return DeltaNetConfig(
        n_heads=fields.integer("num_heads", default=16),
        key_width=width(fields, "expand_k", d, 1.0),
        value_width=width(fields, "expand_v", d, 1.0),
        n_taps=fields.integer("conv_size", default=4),
        gate=fields.flag("use_gate", False),
        negative=fields.flag("allow_neg_eigval", False),
        qk_activation=fields.choice("qk_activation", of=activations, default="silu"),
        qk_norm=fields.choice("qk_norm", of=norms, default="l2"),
        norm_eps=eps,
    )


def _write_delta(mixer: DeltaNetConfig) -> dict[str, Any]:
    return {
        "num_heads": mixer.n_heads,
        "expand_k": mixer.keys / mixer.width,
        "expand_v": mixer.values / mixer.width,
        "conv_size": mixer.n_taps,
        "use_gate": mixer.gate,
        "allow_neg_eigval": mixer.negative,
        "qk_activation": mixer.qk_activation,
        "qk_norm": mixer.qk_norm,
    }


def _delta_rows(mixer: DeltaNetConfig | GatedDeltaNetConfig, config: LanguageModelConfig, i: int) -> list[Row]:
    decays = isinstance(mixer, GatedDeltaNetConfig)
    gate, decay = {"g_proj": "gate_proj"} if mixer.gate else {}, {"a_proj": "decay_proj"} if decays else {}
    taps = tuple(f"{ATTN}.{n}_conv1d.weight" for n in "qkv")
    vectors = [Row(f"{ATTN}.A_log", f"{MIXER}.a_log"), Row(f"{ATTN}.dt_bias", f"{MIXER}.dt_bias")]
    return [
        *linears(ATTN, MIXER, SAME_NAMES | {"b_proj": "beta_proj"} | gate | decay),
        Row(taps, f"{MIXER}.conv.taps", joined_taps(mixer.keys, mixer.keys, mixer.values)),
        *norm(f"{ATTN}.o_norm", f"{MIXER}.norm"),
        *vectors * decays,
    ]


def _read_gated_delta(fields: Fields, d: int, eps: float) -> GatedDeltaNetConfig:
    fields.require("use_short_conv", True)
    fields.require("output_gate_activation", "swish", "silu")
    heads, head = fields.integer("num_heads", default=6), fields.integer("head_dim", default=256)
    value_heads = fields.optional_integer("num_v_heads") or heads
    return GatedDeltaNetConfig(
        n_heads=heads,
        n_value_heads=value_heads,
        key_width=heads * head,
        value_width=value_heads * width(fields, "expand_v", head, 2.0),
        n_taps=fields.integer("conv_size", default=4),
        gate=fields.flag("use_gate", True),
        negative=fields.flag("allow_neg_eigval", False),
        norm_eps=eps,
    )


def _write_gated_delta(mixer: GatedDeltaNetConfig) -> dict[str, Any]:
    return {
        "num_heads": mixer.n_heads,
        "num_v_heads": mixer.heads,
        "head_dim": mixer.head_key,
        "expand_v": mixer.head_value / mixer.head_key,
        "conv_size": mixer.n_taps,
        "use_gate": mixer.gate,
        "allow_neg_eigval": mixer.negative,
    }


def _read_hgrn2(fields: Fields, d: int, eps: float) -> HGRN2Config:
    fields.require("use_lower_bound", True)
    fields.require("use_short_conv", False)
    fields.ignore("conv_size")
    ratio = fields.optional_integer("expand_ratio", 128)
    heads = fields.integer("num_heads", default=d // (ratio or d))
    heads = d // ratio if ratio else heads
    return HGRN2Config(n_heads=heads, key_width=heads * (ratio or d // heads), scaled=True, norm_eps=HGRN2_EPS)


def _write_hgrn2(mixer: HGRN2Config) -> dict[str, Any]:
    return {"num_heads": mixer.n_heads, "expand_ratio": mixer.keys // mixer.n_heads}


def _bounds(logits: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns the lower bounds of all layers: running sums of a softmax over layers, without the first term."""
    shares = np.exp((logits - logits.max(0)).astype(np.float32))
    shares /= shares.sum(0)
    shares[0] = 0
    return tuple(shares.cumsum(0))


def _logits(*bounds: np.ndarray) -> tuple[np.ndarray]:
    """Returns logits with these bounds."""
    stacked = np.stack(bounds).astype(np.float32)
    return (np.log(np.maximum(np.diff(stacked, axis=0, prepend=stacked[-1:] - 1), 1e-30)),)


def _hgrn2_rows(mixer: HGRN2Config, config: LanguageModelConfig, i: int) -> list[Row]:
    names = {"q_proj": "q_proj", "f_proj": "f_proj", "i_proj": "i_proj", "o_proj": "out_proj"}
    bounds = tuple(f"layers.{j}.mixer.lower_bound" for j in range(config.n_layers))
    lower = Row("model.lower_bounds", bounds, Transform("running sums of softmax", _bounds, _logits))
    return [*linears(ATTN, MIXER, names), *norm(f"{ATTN}.g_norm", f"{MIXER}.norm"), *[lower] * (i == 0)]


def _read_ret_net(fields: Fields, d: int, eps: float) -> RetNetConfig:
    if width(fields, "expand_k", d, 1.0) != d:
        fields.refuse("expand_k", "must be 1: keys of this library's RetNet have the width of the model")
    values = width(fields, "expand_v", d, 2.0)
    return RetNetConfig(n_heads=_plain_heads(fields), value_width=values, group_norm="rms", norm_eps=eps)


def _write_ret_net(mixer: RetNetConfig) -> dict[str, Any]:
    return {"num_heads": mixer.n_heads, "expand_v": mixer.values / mixer.width}


def _ret_net_rows(mixer: RetNetConfig, config: LanguageModelConfig, i: int) -> list[Row]:
    heads = mixer.n_heads

    def read(scale: np.ndarray, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.tile(scale, heads).astype(np.float32)[:, None] * x.T,)

    scaled = Transform("scaled", read, lambda x: (np.ones(x.shape[0] // heads, x.dtype), x.T))
    ends = (f"{ATTN}.g_norm_swish_gate.weight", f"{ATTN}.o_proj.weight")
    names = {name: name for name in QKV} | {"g_proj": "gate_proj"}
    return [*linears(ATTN, MIXER, names), Row(ends, f"{MIXER}.out_proj.kernel", scaled)]


KINDS = {
    "gla": Kind("GLAForCausalLM", GatedLinearAttentionConfig, _read_gla, _write_gla, _gla_rows),
    "delta_net": Kind("DeltaNetForCausalLM", DeltaNetConfig, _read_delta, _write_delta, _delta_rows),
    "gated_deltanet": Kind(
        "GatedDeltaNetForCausalLM", GatedDeltaNetConfig, _read_gated_delta, _write_gated_delta, _delta_rows
    ),
    "hgrn2": Kind("HGRN2ForCausalLM", HGRN2Config, _read_hgrn2, _write_hgrn2, _hgrn2_rows),
    "retnet": Kind("RetNetForCausalLM", RetNetConfig, _read_ret_net, _write_ret_net, _ret_net_rows, 2.0),
}
"""Kinds by `model_type`."""


def read_sizes(fields: Fields) -> tuple[int, int, float]:
    """Returns width, layers and `norm_eps`; refuses what no family of flash-linear-attention has here."""
    fields.require("attn", None)
    fields.require("attnres_block_size", None)
    fields.ignore("attn_mode", "use_l2warp", "elementwise_affine")
    sizes = fields.integer("hidden_size", default=2048), fields.integer("num_hidden_layers", default=24)
    return *sizes, fields.number("norm_eps", default=1e-6)


def _read(kind: Kind, fields: Fields) -> LanguageModelConfig:
    d, n_layers, eps = read_sizes(fields)
    fields.require("elementwise_affine", True)
    fields.require("hidden_act", "swish")
    mixer = kind.read(fields, d, eps)
    pattern = [mixer]
    if kind.mixer is HGRN2Config:
        pattern = [dataclasses.replace(mixer, layer_index=i, n_layers=n_layers) for i in range(n_layers)]
    units = int(d * fields.number("hidden_ratio", default=kind.hidden_ratio) * 2 / 3)
    return read_model(
        fields,
        pattern,
        tied=False,
        d_model=d,
        n_layers=n_layers,
        vocab_size=fields.integer("vocab_size", default=32000),
        max_length=fields.integer("max_position_embeddings", default=2048),
        mlp="swiglu",
        mlp_width=fields.optional_integer("intermediate_size") or 256 * -(-units // 256),
        norm="rms",
        norm_eps=eps,
    )


def _write(name: str, kind: Kind, config: LanguageModelConfig) -> dict[str, Any]:
    only(config, name, kind.mixer, norm="rms", mlp="swiglu", mlp_bias=False)
    sizes = {"intermediate_size": config.hidden_width, "max_position_embeddings": config.max_length}
    own = written(
        config, kind.architecture, name, "norm_eps", hidden_act="swish", **sizes, **kind.write(config.layers[0])
    )
    check_layers(config, _read(kind, Fields(own, f"family {name}")), name)
    return own


def check_layers(config: LanguageModelConfig, read: LanguageModelConfig, name: str) -> None:
    """Raises `ValueError` unless the written fields describe the layers of the model, but for their initial values."""
    for index, (ours, theirs) in enumerate(zip(config.layers, read.layers, strict=True)):
        for field in dataclasses.fields(ours):
            name_of_size = SIZES.get(field.name, field.name)
            found, known = getattr(ours, name_of_size), getattr(theirs, name_of_size)
            if found != known and field.name not in WITHOUT_EFFECT:
                raise ValueError(f"layer {index}: {field.name}={found!r}: a model of family {name} has {known!r}")


def _rows(kind: Kind, config: LanguageModelConfig, i: int) -> list[Row]:
    return [
        *norm(f"{LAYER}.attn_norm", f"{OURS}.mixer_norm"),
        *norm(f"{LAYER}.mlp_norm", f"{OURS}.mlp_norm"),
        *linears(f"{LAYER}.mlp", f"{OURS}.mlp", MLP),
        *kind.rows(config.layers[i], config, i),
    ]


def _family(name: str, kind: Kind) -> Family:
    def read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
        return _read(kind, fields)

    return Family(
        name=name,
        matches=by_model_type(name),
        read=read,
        write=lambda config: _write(name, kind, config),
        ends=ENDS,
        rows=lambda config, i: _rows(kind, config, i),
        renames={r"\.attn\.g_norm\.": ".attn.g_norm_swish_gate."} if name in ("gla", "retnet") else {},
    )


FLA = tuple(_family(name, kind) for name, kind in KINDS.items())
