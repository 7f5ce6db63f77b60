"""RecurrentGemma (Griffin): RG-LRU and local attention in turn, scaled embedding, bounded logits."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jaxzoo.interop.families.common import MLP, QKV, only, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm
from jaxzoo.interop.rope import read_rope, rope_fields
from jaxzoo.interop.transforms import CONV, PLUS_ONE
from jaxzoo.mixers import RGLRUConfig, SlidingWindowAttentionConfig
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "model.layers.{i}", "layers.{i}"
MIXER = f"{LAYER}.temporal_block"
BRANCHES = {"linear_x": "x_proj", "linear_y": "gate_proj", "linear_out": "out_proj"}
GATES = {"input_gate": "input_gate", "recurrent_gate": "recurrence_gate"}


def embed_scale(d_model: int) -> float:
    """Square root of the width, rounded to bfloat16."""
    return float(np.float32(d_model**0.5).astype(ml_dtypes.bfloat16))


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    layer, mixer = config.layers[i], f"{OURS}.mixer"
    found = [
        *norm(f"{LAYER}.temporal_pre_norm", f"{OURS}.mixer_norm", PLUS_ONE),
        *norm(f"{LAYER}.channel_pre_norm", f"{OURS}.mlp_norm", PLUS_ONE),
        *linears(f"{LAYER}.mlp_block", f"{OURS}.mlp", MLP, bias=True),
    ]
    if isinstance(layer, SlidingWindowAttentionConfig):
        found += linears(MIXER, mixer, QKV, bias=layer.qkv_bias)
        return found + linears(MIXER, mixer, {"o_proj": "out_proj"}, bias=True)
    return [
        *found,
        *linears(MIXER, mixer, BRANCHES, bias=True),
        Row(f"{MIXER}.conv_1d.weight", f"{mixer}.conv.taps", CONV),
        Row(f"{MIXER}.conv_1d.bias", f"{mixer}.conv.bias"),
        *(Row(f"{MIXER}.rg_lru.{a}_weight", f"{mixer}.{b}.kernel") for a, b in GATES.items()),
        *(Row(f"{MIXER}.rg_lru.{a}_bias", f"{mixer}.{b}.bias") for a, b in GATES.items()),
        Row(f"{MIXER}.rg_lru.recurrent_param", f"{mixer}.log_decay_rate"),
    ]


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    d, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    fields.require("hidden_activation", "gelu_pytorch_tanh")
    fields.require("embeddings_scale_by_sqrt_dim", True)
    fields.ignore("w_init_variance_scale", "final_w_init_variance_scale")
    fields.ignore("head_dim", "layers_block_type", "layer_types")  # follow from other fields
    attention = SlidingWindowAttentionConfig(
        n_heads=heads,
        n_kv_heads=fields.integer("num_key_value_heads", default=heads),
        window=fields.integer("attention_window_size", "sliding_window", default=2048),
        qkv_bias=fields.flag("attention_bias", False),
        out_bias=True,
        **read_rope(fields, max_length=8192, fraction=0.5),
    )
    recurrent = RGLRUConfig(
        inner_width=fields.integer("lru_width", default=d),
        n_heads=heads,
        n_taps=fields.integer("conv1d_width", default=4),
        form="release",
    )
    published = fields.optional("_block_types", ["recurrent", "recurrent", "attention"])
    kinds = fields.optional("block_types", published)
    of = {"recurrent": recurrent, "attention": attention}
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) and kind in of for kind in kinds):
        fields.refuse("block_types", "must be a list of recurrent and attention")
    return read_model(
        fields,
        [of[kind] for kind in kinds],
        tied=True,
        max_length=8192,
        mlp="geglu_tanh",
        mlp_width=fields.integer("intermediate_size", low=2) // 2,
        mlp_bias=True,
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
        embed_scale=embed_scale(d),
        logit_soft_cap=fields.number("logits_soft_cap", default=30.0),
    )


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    d = config.d_model
    scaled = {"embed_scale": embed_scale(d), "logit_soft_cap": config.logit_soft_cap}
    kinds = RGLRUConfig | SlidingWindowAttentionConfig
    only(config, "recurrent_gemma", kinds, norm="rms", mlp="geglu_tanh", mlp_bias=True, **scaled)
    recurrent = {layer for layer in config.layers if isinstance(layer, RGLRUConfig)}
    attention = {layer for layer in config.layers if isinstance(layer, SlidingWindowAttentionConfig)}
    if len(recurrent) != 1 or len(attention) != 1:
        raise ValueError(
            "layers of family recurrent_gemma are RG-LRU of one config and sliding window attention of one"
        )
    lru, window = recurrent.pop(), attention.pop()
    plain = (lru.form, lru.decay_constant, lru.n_heads) == ("release", RGLRUConfig.decay_constant, window.n_heads)
    plain = plain and window.out_bias and window.head_width * window.n_heads == d
    if not plain or not config.logit_soft_cap:
        raise ValueError(
            f"family recurrent_gemma has RG-LRU of form 'release' and decay_constant {RGLRUConfig.decay_constant:g}, "
            "as many heads as attention, whose width is d_model and which has an output bias, and bounded logits"
        )
    own = {
        "intermediate_size": 2 * config.hidden_width,
        "num_attention_heads": window.n_heads,
        "num_key_value_heads": window.kv_heads,
        "lru_width": lru.inner,
        "attention_window_size": window.window,
        "conv1d_width": lru.n_taps,
        "logits_soft_cap": config.logit_soft_cap,
        "hidden_activation": "gelu_pytorch_tanh",
        "block_types": ["recurrent" if layer == lru else "attention" for layer in config.layers],
        "attention_bias": window.qkv_bias,
        **rope_fields(window),
    }
    return written(config, "RecurrentGemmaForCausalLM", "recurrent_gemma", "rms_norm_eps", **own)


RECURRENT_GEMMA = Family(
    name="recurrent_gemma",
    matches=by_model_type("recurrent_gemma"),
    read=_read,
    write=_write,
    ends=("model.embed_tokens.weight", "model.final_norm", "lm_head.weight"),
    rows=rows,
    norm_scale=PLUS_ONE,
)
