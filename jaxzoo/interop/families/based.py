"""Based and its Transformer++ peers, as their authors released them: a raw state dict and the fields of a GPT2Config.

The mixer of a layer is `alt_mixer_2` if `alt_mixer_2_layers` names the layer, `alt_mixer` if `alt_mixer_layers` does,
else `mixer`; without any it is full attention. A window of W means W // 2 + 1 keys. `fixed_decay` is read and left
out with its buffer, as by the released mixer. Widths of MLPs follow from the tensors, as the released code rounds them
up, and so do biases and the kind of norm where no field says.
"""

import math
from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import QKV, alike, matrix_shape, only
from jaxzoo.interop.families.gpt_neox import ACTIVATIONS
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, linears, norm, packed
from jaxzoo.interop.transforms import CONV, split_rows
from jaxzoo.layers.mlp import MLPKind
from jaxzoo.mixers import (
    AttentionConfig,
    GatedShortConvConfig,
    MixerConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS, MLP = "transformer.layers.{i}", "layers.{i}", "transformer.layers.0.mlp"
MIXER = f"{OURS}.mixer"
GATES: Mapping[str, MLPKind] = {"swiglu": "swiglu", "geglu": "geglu", "glu": "glu"}
PLAIN_TAYLOR = ("decay", "output_scaling", "normalize", "eps")
"""Fields of Taylor linear attention that stay at their defaults."""
PLAIN: Mapping[str, MLPKind] = {**ACTIVATIONS, "gelu_approx": "gelu_tanh"}
WITHOUT_EFFECT = (
    "_target_", "decay_const", "decay_denom", "expand_proj", "ff_mult", "fixed_decay", "max_position_embeddings",
    "n_ctx", "n_inner", "n_positions", "special_initializer", "use_weight_init", "vocab_size",
)  # fmt: skip
"""Fields of initial values, and those that follow from the tensors."""
FROM_THE_MODEL = (
    "num_heads", "num_heads_kv", "qkv_proj_bias", "out_proj_bias", "dropout", "softmax_scale", "layer_idx",
    "rotary_emb_dim", "rotary_emb_base", "rotary_emb_scale_base", "rotary_emb_interleaved",
)  # fmt: skip
"""Fields of a sliding attention that the model overrides with its own."""


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    positions = [Row("transformer.embeddings.position_embeddings.weight", "position_embedding")]
    has_shift, bias = config.norm == "layer", config.mlp_bias
    names = ("up_proj", "gate_proj") if config.mlp in GATES else ("up_proj",)  # `fc1` holds the values, then the gate
    split = split_rows(*(config.hidden_width,) * len(names))
    return [
        *positions * (i == 0 and config.max_positions is not None),
        *norm(f"{LAYER}.norm1", f"{OURS}.mixer_norm", bias=has_shift),
        *norm(f"{LAYER}.norm2", f"{OURS}.mlp_norm", bias=has_shift),
        *packed(f"{LAYER}.mlp.fc1", f"{OURS}.mlp", names, split, bias=bias),
        *linears(f"{LAYER}.mlp", f"{OURS}.mlp", {"fc2": "down_proj"}, bias=bias),
        *_mixer_rows(config.layers[i]),
    ]


def _mixer_rows(layer: MixerConfig) -> list[Row]:
    theirs = f"{LAYER}.mixer"
    if isinstance(layer, GatedShortConvConfig):
        bias = [Row(f"{theirs}.conv.conv.bias", f"{MIXER}.conv_bias")] * layer.conv_bias
        projections = linears(theirs, MIXER, ("in_proj", "out_proj"), bias=True)
        return [*projections, Row(f"{theirs}.conv.conv.weight", f"{MIXER}.taps", CONV), *bias]
    if isinstance(layer, TaylorLinearAttentionConfig):
        names = {"proj_q": "q_proj", "proj_k": "k_proj", "proj_v": "v_proj", "out_proj": "out_proj"}
        return linears(theirs, MIXER, names)
    assert isinstance(layer, AttentionConfig | SlidingWindowAttentionConfig)
    split = split_rows(*(n * layer.head_width for n in (layer.n_heads, layer.kv_heads, layer.kv_heads)))
    return [
        *packed(f"{theirs}.Wqkv", MIXER, QKV, split, bias=layer.qkv_bias),
        *linears(theirs, MIXER, ("out_proj",), bias=layer.out_bias),
    ]


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    for name, value in (
        ("prenorm", True),
        ("parallel_block", False),
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("lm_head_bias", False),
        ("mlp_type", "base"),
        ("attn_dwconv", False),
        ("rotary_emb_interleaved", False),
    ):
        fields.require(name, value)
    fields.ignore(*WITHOUT_EFFECT)
    d = fields.integer("n_embd", "hidden_size", default=768)
    n_layers = fields.integer("n_layer", "num_hidden_layers", default=12)
    attention = _attention(fields, d, shapes)
    mixers = {name: _mixer(fields, name, attention, shapes) for name in ("mixer", "alt_mixer", "alt_mixer_2")}
    chosen = [mixers["mixer"]] * n_layers
    for name in ("alt_mixer", "alt_mixer_2"):
        places = fields.optional(f"{name}_layers") or []
        if not isinstance(places, list) or not all(type(i) is int and 0 <= i < n_layers for i in places):
            fields.refuse(f"{name}_layers", f"must be a list of layers below {n_layers}")
        for i in places:
            chosen[i] = mixers[name]
    table = matrix_shape(fields, shapes, "transformer.embeddings.word_embeddings.weight")
    positions = shapes.get("transformer.embeddings.position_embeddings.weight")
    made_for = (fields.content[name].get("l_max") for name in ("mixer", "alt_mixer") if fields.content.get(name))
    length = next((n for n in made_for if type(n) is int and n > 0), 2048)
    biases = [fields.flag(f"mlp_fc{n}_bias", f"{MLP}.fc{n}.bias" in shapes) for n in (1, 2)]
    if biases[0] != biases[1]:
        fields.refuse("mlp_fc2_bias", "must be mlp_fc1_bias: an MLP here has all biases or none")
    return LanguageModelConfig(
        pattern=(chosen[0],) if len(set(chosen)) == 1 else tuple(chosen),
        d_model=d,
        n_layers=n_layers,
        vocab_size=table[0],
        pad_vocab_multiple=1,
        max_length=positions[0] if positions else length,
        max_positions=positions[0] if positions else None,
        mlp=fields.choice("activation_function", of={**GATES, **PLAIN}, default="gelu_new"),
        mlp_width=matrix_shape(fields, shapes, f"{MLP}.fc2.weight")[1],
        mlp_bias=biases[0],
        norm="rms" if fields.flag("rms_norm", "transformer.ln_f.bias" not in shapes) else "layer",
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
    )


def _attention(fields: Fields, d: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    heads = fields.integer("n_head", "num_attention_heads", default=12)
    width = fields.integer("head_dim", default=max(d // heads, 1))
    asked = int(fields.number("rotary_emb_fraction", default=0.0) * width)
    rotated = asked + asked % 2  # as flash-attn does for an odd number (attn-1b: 35), with the frequencies of the odd
    packed = [name.removesuffix("Wqkv.weight") for name in shapes if name.endswith(".Wqkv.weight")]
    if rotated > width:
        fields.refuse("rotary_emb_fraction", f"gives {rotated} channels of heads that have {width}")
    common: dict[str, Any] = {
        "n_heads": heads,
        "n_kv_heads": fields.integer("n_head_kv", default=heads),
        "head_dim": width,
        "qkv_bias": fields.flag("qkv_proj_bias", any(f"{name}Wqkv.bias" in shapes for name in packed)),
        "out_bias": fields.flag("out_proj_bias", any(f"{name}out_proj.bias" in shapes for name in packed)),
    }
    base = fields.number("rotary_emb_base", default=10000.0, low=1)
    fields.require("rotary_emb_scale_base", None)
    if not rotated:
        return common
    base **= rotated / asked
    return common | {"positions": "rotary", "rotary_fraction": rotated / width, "rotary_base": base}


def _mixer(fields: Fields, name: str, attention: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> MixerConfig:
    """Returns the mixer that a field describes; None is full attention."""
    section = fields.section(name)
    if section is None:
        return AttentionConfig(**attention)
    kind = str(section.optional("_target_")).rpartition(".")[2]
    section.ignore("l_max")
    if kind == "BaseConv":
        section.require("use_bias", True)
        section.ignore("kernel_sizes", "use_cuda")
        mixer: MixerConfig = GatedShortConvConfig(
            expansion=section.integer("expand_proj", default=2),
            n_taps=section.integer("kernel_size", default=3),
            conv_bias=any(shape for name, shape in shapes.items() if name.endswith(".mixer.conv.conv.bias")),
        )
    elif kind == "LinearAttention":
        section.ignore("eps", "layer_idx", "train_view")
        section.require("parallel_implementation", "quadratic", "linear", "fla_parallel", "fla_chunk")
        width = section.integer("feature_dim", default=16)
        features = section.section("feature_map") or Fields({"_target_": "TaylorExp"}, section.where)
        is_taylor = str(features.optional("_target_")).endswith("TaylorExp")
        if not is_taylor or features.integer("input_dim", default=width) != width:
            features.refuse("_target_", f"must be TaylorExp of {width} channels, the map of the released models")
        head = section.optional_integer("head_dim")
        heads = section.integer("num_heads", default=16)
        mixer = TaylorLinearAttentionConfig(n_heads=heads, feature_dim=width, head_dim=head)
    elif kind == "SlidingAttention":
        section.ignore(*FROM_THE_MODEL)
        section.require("causal", True)
        window = section.integer("window_size", default=128) // 2 + 1
        mixer = SlidingWindowAttentionConfig(**{"positions": "none", **attention}, window=window)
    elif kind == "MHA":
        return AttentionConfig(**attention)
    else:
        section.refuse("_target_", "must be BaseConv, LinearAttention, SlidingAttention or MHA")
    section.check_all_read()
    return mixer


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    kinds = (*GATES, "gelu", "gelu_tanh")
    free = {"max_positions": config.max_positions, "mlp_bias": (False, True), "norm": ("rms", "layer")}
    only(config, "based", mlp=kinds, **free)
    found = list(dict.fromkeys(config.layers))
    attention = next(iter(alike(config, "based")), None)
    if len({layer.conv_bias for layer in found if isinstance(layer, GatedShortConvConfig)}) > 1:
        raise ValueError("conv_bias: all convolutions of a model of family based have a bias, or none")
    sections = [_section(config, layer) for layer in found]
    if len(found) > 3 or sections.count(None) > 1:
        raise ValueError(f"{len(found)} kinds of layers: a model of family based has three at most")
    sections.sort(key=lambda section: section is not None)  # full attention is what no field describes
    found.sort(key=lambda layer: not isinstance(layer, AttentionConfig))
    written: dict[str, Any] = {
        "vocab_size": config.padded_vocab_size,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_inner": config.hidden_width,
        "n_positions": config.max_positions or 0,
        "activation_function": {"gelu_tanh": "gelu_new"}.get(config.mlp, config.mlp),
        "mlp_fc1_bias": config.mlp_bias,
        "mlp_fc2_bias": config.mlp_bias,
        "rms_norm": config.norm == "rms",
        "layer_norm_epsilon": config.norm_eps,
        "residual_in_fp32": True,
        "pad_vocab_size_multiple": 1,
        "tie_word_embeddings": config.tie_embeddings,
        "scale_attn_by_inverse_layer_idx": False,
    }
    if attention is not None:
        share = attention.rotary_fraction if attention.rotates else 0.0
        if int(share * attention.head_width) < attention.rotated_channels * attention.rotates:
            share = math.nextafter(share, 1.0)  # the product is rounded down there
        written |= {"n_head": attention.n_heads, "n_head_kv": attention.n_kv_heads, "head_dim": attention.head_width}
        written |= {"rotary_emb_fraction": share, "rotary_emb_base": attention.rotary_base}
        written |= {"qkv_proj_bias": attention.qkv_bias, "out_proj_bias": attention.out_bias}
    for name, layer, section in zip(("mixer", "alt_mixer", "alt_mixer_2"), found, sections, strict=False):
        written |= {name: section} if section else {}
        if name != "mixer":
            written[f"{name}_layers"] = [i for i, each in enumerate(config.layers) if each == layer]
    return written


def _section(config: LanguageModelConfig, layer: MixerConfig) -> dict[str, Any] | None:
    """Returns the field that describes a mixer; None for full attention."""
    where = "based.models.mixers"
    if isinstance(layer, GatedShortConvConfig) and not layer.input_gate and layer.activation == "silu":
        conv = {"expand_proj": layer.expansion, "kernel_size": layer.n_taps}
        flags = {"use_bias": True, "use_cuda": layer.conv_bias}
        return {"_target_": f"{where}.convolution.BaseConv", "l_max": config.max_length, **conv, **flags}
    if isinstance(layer, TaylorLinearAttentionConfig) and all(
        getattr(layer, name) == getattr(TaylorLinearAttentionConfig, name) for name in PLAIN_TAYLOR
    ):
        map_ = {"_target_": f"{where}.linear_attention.TaylorExp", "input_dim": layer.feature_dim}
        sizes = {"num_heads": layer.n_heads, "feature_dim": layer.feature_dim, "head_dim": layer.value_width}
        if layer.kv_heads == layer.n_heads:
            target = f"{where}.linear_attention.LinearAttention"
            return {"_target_": target, "l_max": config.max_length, "feature_map": map_, **sizes}
    if isinstance(layer, AttentionConfig | SlidingWindowAttentionConfig):
        _check_positions(layer)
    if isinstance(layer, SlidingWindowAttentionConfig):
        window = {"window_size": max(2 * (layer.window - 1), 1), "num_heads": layer.n_heads, "causal": True}
        return {"_target_": f"{where}.slide_attention.SlidingAttention", **window}
    if isinstance(layer, AttentionConfig) and layer.qk_norm == "none" and not layer.output_gate:
        return None
    raise ValueError(f"{type(layer).__name__}, with its options, has no place in a model of family based")


def _check_positions(layer: MultiHeadConfig) -> None:
    plain = not layer.rotary_interleaved and layer.rotary_scaling.kind == "none"
    if layer.positions != "none" and not (layer.positions == "rotary" and plain):
        raise ValueError(
            f"positions={layer.positions!r}, rotary_interleaved={layer.rotary_interleaved}, rotary_scaling.kind="
            f"{layer.rotary_scaling.kind!r}: a model of family based has no positions, or rotary ones of channels half "
            "a head apart, not scaled"
        )


BASED = Family(
    name="based",
    matches=lambda content, names: any("transformer.layers.0.mixer." in name for name in names),
    read=_read,
    write=_write,
    ends=("transformer.embeddings.word_embeddings.weight", "transformer.ln_f", "lm_head.weight"),
    rows=rows,
    renames={r"^model\.": ""},
    left_out=(r".*metrics.*", r".*\.rotary_emb\.(inv_freq|scale)", r"transformer\.decay\.decay"),
)
