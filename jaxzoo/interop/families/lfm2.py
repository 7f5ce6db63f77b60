"""LFM2: gated short convolutions and attention with norms of queries and keys."""

from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import QKV, alike, only, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm
from jaxzoo.interop.rope import read_rope, rope_fields
from jaxzoo.interop.transforms import CONV
from jaxzoo.mixers import AttentionConfig, GatedShortConvConfig, MixerConfig
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "model.layers.{i}", "layers.{i}"
ATTENTION, CONVOLUTION, MIXER = f"{LAYER}.self_attn", f"{LAYER}.conv", f"{OURS}.mixer"
WITHOUT_EFFECT = (
    "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
    "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "use_pos_enc",
)  # fmt: skip
"""Fields of published folders that transformers does not read."""


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    layer = config.layers[i]
    feed_forward = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
    found = [
        *norm(f"{LAYER}.operator_norm", f"{OURS}.mixer_norm"),
        *norm(f"{LAYER}.ffn_norm", f"{OURS}.mlp_norm"),
        *linears(f"{LAYER}.feed_forward", f"{OURS}.mlp", feed_forward),
    ]
    if isinstance(layer, GatedShortConvConfig):
        bias = [Row(f"{CONVOLUTION}.conv.bias", f"{MIXER}.conv_bias")] * layer.conv_bias
        found += linears(CONVOLUTION, MIXER, ("in_proj", "out_proj"), bias=layer.projection_bias)
        return [*found, Row(f"{CONVOLUTION}.conv.weight", f"{MIXER}.taps", CONV), *bias]
    norms = (row for n in "qk" for row in norm(f"{ATTENTION}.{n}_layernorm", f"{MIXER}.{n}_norm"))
    return [*found, *linears(ATTENTION, MIXER, (*QKV, "out_proj")), *norms]


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    fields.ignore(*WITHOUT_EFFECT)
    n_layers, eps = fields.integer("num_hidden_layers"), fields.number("norm_eps", default=1e-5)
    max_length = fields.integer("max_position_embeddings", default=128000)
    bias = fields.flag("conv_bias", False)
    conv = GatedShortConvConfig.lfm2(
        n_taps=fields.integer("conv_L_cache", default=3), conv_bias=bias, projection_bias=bias
    )
    heads = fields.integer("num_attention_heads")
    attention = AttentionConfig(
        n_heads=heads,
        n_kv_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=fields.optional_integer("head_dim"),
        qk_norm="rms",
        qk_norm_eps=eps,
        **read_rope(fields, max_length=max_length, base=1e6),
    )
    of: dict[str, MixerConfig] = {"conv": conv, "full_attention": attention}
    places = fields.optional("full_attn_idxs")
    places = range(n_layers) if places is None else places
    return read_model(
        fields,
        fields.words("layer_types", n_layers, of) or [attention if i in places else conv for i in range(n_layers)],
        tied=fields.flag("tie_embedding", True),
        max_length=max_length,
        mlp="swiglu",
        mlp_width=_width(fields),
        norm="rms",
        norm_eps=eps,
    )


def _width(fields: Fields) -> int:
    """Width of the MLP, rounded as LFM2 does with `block_auto_adjust_ff_dim`."""
    width = fields.integer("block_ff_dim", "intermediate_size")
    factor = fields.number("block_ffn_dim_multiplier", default=1.0)
    multiple = fields.integer("block_multiple_of", default=256)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    return multiple * -(-int(factor * int(2 * width / 3)) // multiple)


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    only(config, "lfm2", GatedShortConvConfig | AttentionConfig, norm="rms", mlp="swiglu", mlp_bias=False)
    convs = {layer for layer in config.layers if isinstance(layer, GatedShortConvConfig)}
    attentions: Any = alike(config, "lfm2")
    if len(convs) != 1 or not attentions:
        raise ValueError("layers of family lfm2 are short convolutions of one config and attention of one")
    conv, attention = convs.pop(), attentions[0]
    lfm2 = (conv.expansion, conv.input_gate, conv.activation, conv.projection_bias)
    plain = (attention.qk_norm, attention.qk_norm_eps, attention.output_gate, attention.qkv_bias, attention.out_bias)
    if lfm2 != (2, True, "none", conv.conv_bias) or plain != ("rms", config.norm_eps, False, False, False):
        raise ValueError(
            "family lfm2 has GatedShortConvConfig.lfm2 with all biases or none, and attention with norms of queries "
            "and keys of the model's norm_eps, without biases or a gate"
        )
    own = {
        "intermediate_size": config.hidden_width,
        "block_auto_adjust_ff_dim": False,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_width,
        "conv_L_cache": conv.n_taps,
        "conv_bias": conv.conv_bias,
        "layer_types": ["conv" if isinstance(x, GatedShortConvConfig) else "full_attention" for x in config.layers],
        "max_position_embeddings": config.max_length,
        **rope_fields(attention),
    }
    return written(config, "Lfm2ForCausalLM", "lfm2", "norm_eps", **own)


LFM2 = Family(
    name="lfm2",
    matches=by_model_type("lfm2"),
    read=_read,
    write=_write,
    ends=("model.embed_tokens.weight", "model.embedding_norm", "lm_head.weight"),
    rows=rows,
)
