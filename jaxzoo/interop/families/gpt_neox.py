"""GPT-NeoX and Pythia: LayerNorm, partly rotary attention with biases, parallel or sequential residual."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxzoo.interop.families.common import attention_layers, only
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, layers
from jaxzoo.interop.rope import read_rope, write_rope
from jaxzoo.interop.transforms import TRANSPOSED, split_heads
from jaxzoo.layers.mlp import MLPKind
from jaxzoo.mixers import AttentionConfig
from jaxzoo.models.config import LanguageModelConfig

LAYER, OURS = "gpt_neox.layers.{i}", "layers.{i}"
QKV = ("q_proj", "k_proj", "v_proj")
NORMS = {"input_layernorm": "mixer_norm", "post_attention_layernorm": "mlp_norm"}
MLP = {"dense_h_to_4h": "up_proj", "dense_4h_to_h": "down_proj"}
TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
ACTIVATIONS: Mapping[str, MLPKind] = {"gelu": "gelu", **dict.fromkeys(TANH, "gelu_tanh")}


def rows(config: LanguageModelConfig) -> Iterator[Row]:
    """All tensors of a model."""
    attention = attention_layers(config, "gpt_neox")[0]
    packed = split_heads(attention.n_heads, *(attention.head_width,) * 3)
    dense = f"{LAYER}.attention.dense"
    yield Row("gpt_neox.embed_in.weight", "embedding")
    table = [
        *(Row(f"{LAYER}.{a}.weight", f"{OURS}.{b}.scale") for a, b in NORMS.items()),
        *(Row(f"{LAYER}.{a}.bias", f"{OURS}.{b}.bias") for a, b in NORMS.items()),
        Row(f"{LAYER}.attention.query_key_value.weight", tuple(f"{OURS}.mixer.{n}.kernel" for n in QKV), packed),
        Row(f"{dense}.weight", f"{OURS}.mixer.out_proj.kernel", TRANSPOSED),
        *(Row(f"{LAYER}.mlp.{a}.weight", f"{OURS}.mlp.{b}.kernel", TRANSPOSED) for a, b in MLP.items()),
        *(Row(f"{LAYER}.mlp.{a}.bias", f"{OURS}.mlp.{b}.bias") for a, b in MLP.items()),
    ]
    if attention.qkv_bias:
        biases = tuple(f"{OURS}.mixer.{n}.bias" for n in QKV)
        table += [Row(f"{LAYER}.attention.query_key_value.bias", biases, packed)]
        table += [Row(f"{dense}.bias", f"{OURS}.mixer.out_proj.bias")]
    yield from layers(table, config.n_layers)
    yield Row("gpt_neox.final_layer_norm.weight", "final_norm.scale")
    yield Row("gpt_neox.final_layer_norm.bias", "final_norm.bias")
    if not config.tie_embeddings:
        yield Row("embed_out.weight", "head")


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
    return LanguageModelConfig(
        pattern=(attention,),
        d_model=fields.integer("hidden_size"),
        n_layers=fields.integer("num_hidden_layers"),
        vocab_size=fields.integer("vocab_size"),
        pad_vocab_multiple=1,
        max_length=max_length,
        mlp=fields.choice("hidden_act", of=ACTIVATIONS, default="gelu"),
        mlp_width=fields.integer("intermediate_size"),
        mlp_bias=True,
        parallel_residual=fields.flag("use_parallel_residual", True),
        norm="layer",
        norm_eps=fields.number("layer_norm_eps", default=1e-5),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
    )


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    only(config, "gpt_neox", norm="layer", mlp=("gelu", "gelu_tanh"), mlp_bias=True, parallel_residual=(False, True))
    attention = attention_layers(config, "gpt_neox")[0]
    plain = attention.kv_heads == attention.n_heads and attention.head_width * attention.n_heads == config.d_model
    if (
        not plain
        or attention.qkv_bias != attention.out_bias
        or attention.qk_norm != "none"
        or hasattr(attention, "window")
    ):
        raise ValueError("attention of family gpt_neox has heads of d_model / n_heads, all biases or none, no window")
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": config.padded_vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.hidden_width,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": attention.n_heads,
        "hidden_act": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[config.mlp],
        "max_position_embeddings": config.max_length,
        "layer_norm_eps": config.norm_eps,
        "use_parallel_residual": config.parallel_residual,
        "attention_bias": attention.qkv_bias,
        "rope_parameters": {"partial_rotary_factor": 1.0, **write_rope(attention)},
        "tie_word_embeddings": config.tie_embeddings,
    }


GPT_NEOX = Family(
    name="gpt_neox",
    matches=by_model_type("gpt_neox"),
    read=_read,
    write=_write,
    rows=rows,
    renames={r"^lm_head\.": "embed_out."},
    left_out=(r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    tied=("gpt_neox.embed_in.weight", "embed_out.weight"),
)
