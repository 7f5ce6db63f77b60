"""GPT-NeoX and Pythia: LayerNorm, partly rotary attention with biases, parallel or sequential residual."""

from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import QKV, attention_layers, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm, packed
from jaxzoo.interop.rope import read_rope, rope_fields
from jaxzoo.interop.transforms import split_heads
from jaxzoo.layers.mlp import MLPKind
from jaxzoo.mixers import AttentionConfig
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "gpt_neox.layers.{i}", "layers.{i}"
MLP = {"dense_h_to_4h": "up_proj", "dense_4h_to_h": "down_proj"}
TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
ACTIVATIONS: Mapping[str, MLPKind] = {"gelu": "gelu", **dict.fromkeys(TANH, "gelu_tanh")}


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    layer: Any = config.layers[i]
    attention, mixer = f"{LAYER}.attention", f"{OURS}.mixer"
    by_head = split_heads(layer.n_heads, *(layer.head_width,) * 3)
    return [
        *norm(f"{LAYER}.input_layernorm", f"{OURS}.mixer_norm", bias=True),
        *norm(f"{LAYER}.post_attention_layernorm", f"{OURS}.mlp_norm", bias=True),
        *packed(f"{attention}.query_key_value", mixer, QKV, by_head, bias=layer.qkv_bias),
        *linears(attention, mixer, {"dense": "out_proj"}, bias=layer.out_bias),
        *linears(f"{LAYER}.mlp", f"{OURS}.mlp", MLP, bias=True),
    ]


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    max_length = fields.integer("max_position_embeddings", default=2048)
    biased = fields.flag("attention_bias", True)
    older: dict[str, Any] = {"older_theta": "rotary_emb_base", "older_fraction": "rotary_pct"}
    attention = AttentionConfig(
        n_heads=fields.integer("num_attention_heads"),
        qkv_bias=biased,
        out_bias=biased,
        **read_rope(fields, max_length=max_length, fraction=0.25, **older),
    )
    return read_model(
        fields,
        [attention],
        tied=False,
        max_length=max_length,
        mlp=fields.choice("hidden_act", of=ACTIVATIONS, default="gelu"),
        mlp_width=fields.integer("intermediate_size"),
        mlp_bias=True,
        parallel_residual=fields.flag("use_parallel_residual", True),
        norm="layer",
        norm_eps=fields.number("layer_norm_eps", default=1e-5),
    )


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    of: dict[str, Any] = {"norm": "layer", "mlp": ("gelu", "gelu_tanh"), "mlp_bias": True}
    layers = attention_layers(config, "gpt_neox", parallel_residual=(False, True), **of)
    attention = layers[0]
    plain = attention.kv_heads == attention.n_heads and attention.head_width * attention.n_heads == config.d_model
    plain = plain and attention.qk_norm == "none" and not any(hasattr(x, "window") for x in layers)
    if not plain or attention.qkv_bias != attention.out_bias:
        raise ValueError("attention of family gpt_neox has heads of d_model / n_heads, all biases or none, no window")
    own = {
        "intermediate_size": config.hidden_width,
        "num_attention_heads": attention.n_heads,
        "hidden_act": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[config.mlp],
        "max_position_embeddings": config.max_length,
        "use_parallel_residual": config.parallel_residual,
        "attention_bias": attention.qkv_bias,
        **rope_fields(attention, older_theta="rotary_emb_base", older_fraction="rotary_pct"),
    }
    return written(config, "GPTNeoXForCausalLM", "gpt_neox", "layer_norm_eps", **own)


GPT_NEOX = Family(
    name="gpt_neox",
    matches=by_model_type("gpt_neox"),
    read=_read,
    write=_write,
    ends=("gpt_neox.embed_in.weight", "gpt_neox.final_layer_norm", "embed_out.weight"),
    rows=rows,
    renames={r"^lm_head\.": "embed_out."},
    left_out=(r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
)
