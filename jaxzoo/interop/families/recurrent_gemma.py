"""RecurrentGemma (Griffin): RG-LRU and local attention in turn, scaled embedding, bounded logits."""

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jaxzoo.interop.families.common import only
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type
from jaxzoo.interop.rope import read_rope, write_rope
from jaxzoo.interop.transforms import CONV, PLUS_ONE, TRANSPOSED
from jaxzoo.mixers import RGLRUConfig, SlidingWindowAttentionConfig
from jaxzoo.models.config import LanguageModelConfig

LAYER, OURS = "model.layers.{i}", "layers.{i}"
MIXER = f"{LAYER}.temporal_block"
SHARED = (
    Row(f"{LAYER}.temporal_pre_norm.weight", f"{OURS}.mixer_norm.scale", PLUS_ONE),
    Row(f"{LAYER}.channel_pre_norm.weight", f"{OURS}.mlp_norm.scale", PLUS_ONE),
    *(
        Row(f"{LAYER}.mlp_block.{n}.weight", f"{OURS}.mlp.{n}.kernel", TRANSPOSED)
        for n in ("gate_proj", "up_proj", "down_proj")
    ),
    *(Row(f"{LAYER}.mlp_block.{n}.bias", f"{OURS}.mlp.{n}.bias") for n in ("gate_proj", "up_proj", "down_proj")),
)
BRANCHES = {"linear_x": "x_proj", "linear_y": "gate_proj", "linear_out": "out_proj"}
GATES = {"input_gate": "input_gate", "recurrent_gate": "recurrence_gate"}
RECURRENT = (
    *(Row(f"{MIXER}.{a}.weight", f"{OURS}.mixer.{b}.kernel", TRANSPOSED) for a, b in BRANCHES.items()),
    *(Row(f"{MIXER}.{a}.bias", f"{OURS}.mixer.{b}.bias") for a, b in BRANCHES.items()),
    Row(f"{MIXER}.conv_1d.weight", f"{OURS}.mixer.conv.taps", CONV),
    Row(f"{MIXER}.conv_1d.bias", f"{OURS}.mixer.conv.bias"),
    *(Row(f"{MIXER}.rg_lru.{a}_weight", f"{OURS}.mixer.{b}.kernel") for a, b in GATES.items()),
    *(Row(f"{MIXER}.rg_lru.{a}_bias", f"{OURS}.mixer.{b}.bias") for a, b in GATES.items()),
    Row(f"{MIXER}.rg_lru.recurrent_param", f"{OURS}.mixer.log_decay_rate"),
)
PROJECTIONS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "out_proj"}
ATTENTION = (
    *(Row(f"{MIXER}.{a}.weight", f"{OURS}.mixer.{b}.kernel", TRANSPOSED) for a, b in PROJECTIONS.items()),
    Row(f"{MIXER}.o_proj.bias", f"{OURS}.mixer.out_proj.bias"),
)
QKV_BIASES = tuple(Row(f"{MIXER}.{n}.bias", f"{OURS}.mixer.{n}.bias") for n in ("q_proj", "k_proj", "v_proj"))


def embed_scale(d_model: int) -> float:
    """The root of the width, rounded to bfloat16."""
    return float(np.float32(d_model**0.5).astype(ml_dtypes.bfloat16))


def rows(config: LanguageModelConfig) -> Iterator[Row]:
    """All tensors of a model."""
    yield Row("model.embed_tokens.weight", "embedding")
    for i, layer in enumerate(config.layers):
        own = RECURRENT if isinstance(layer, RGLRUConfig) else ATTENTION
        own += QKV_BIASES * bool(getattr(layer, "qkv_bias", False))
        yield from (row.at(i=i) for row in (*SHARED, *own))
    yield Row("model.final_norm.weight", "final_norm.scale", PLUS_ONE)
    if not config.tie_embeddings:
        yield Row("lm_head.weight", "head")


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    d, heads, n_layers = (fields.integer(f) for f in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    fields.require("hidden_activation", "gelu_pytorch_tanh")
    fields.require("embeddings_scale_by_sqrt_dim", True)
    for name in (
        "w_init_variance_scale",
        "final_w_init_variance_scale",
        "head_dim",
        "layers_block_type",
        "layer_types",
    ):
        fields.optional(name)  # initial values, and what follows from other fields
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
    kinds = fields.optional("block_types", ["recurrent", "recurrent", "attention"])
    of = {"recurrent": recurrent, "attention": attention}
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) and kind in of for kind in kinds):
        fields.refuse("block_types", "must be a list of recurrent and attention")
    return LanguageModelConfig(
        pattern=tuple(of[kind] for kind in kinds),
        d_model=d,
        n_layers=n_layers,
        vocab_size=fields.integer("vocab_size"),
        pad_vocab_multiple=1,
        max_length=8192,
        mlp="geglu_tanh",
        mlp_width=fields.integer("intermediate_size", low=2) // 2,
        mlp_bias=True,
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
        embed_scale=embed_scale(d),
        logit_soft_cap=fields.number("logits_soft_cap", default=30.0),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
    )


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    d = config.d_model
    scaled = {"embed_scale": embed_scale(d), "logit_soft_cap": config.logit_soft_cap}
    only(config, "recurrent_gemma", norm="rms", mlp="geglu_tanh", mlp_bias=True, **scaled)
    kinds = {RGLRUConfig: "recurrent", SlidingWindowAttentionConfig: "attention"}
    recurrent = {layer for layer in config.layers if isinstance(layer, RGLRUConfig)}
    attention = {layer for layer in config.layers if isinstance(layer, SlidingWindowAttentionConfig)}
    strange = [layer for layer in config.layers if type(layer) not in kinds]
    if strange or len(recurrent) != 1 or len(attention) != 1:
        raise ValueError(
            "layers of family recurrent_gemma are RG-LRU of one config and sliding window attention of one"
        )
    lru, window = recurrent.pop(), attention.pop()
    if lru.form != "release" or lru.n_heads != window.n_heads or not window.out_bias or not config.logit_soft_cap:
        raise ValueError(
            "family recurrent_gemma has RG-LRU of form 'release' with as many heads as attention, which has "
            "an output bias, and bounded logits"
        )
    return {
        "architectures": ["RecurrentGemmaForCausalLM"],
        "model_type": "recurrent_gemma",
        "vocab_size": config.padded_vocab_size,
        "hidden_size": d,
        "intermediate_size": 2 * config.hidden_width,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": window.n_heads,
        "num_key_value_heads": window.kv_heads,
        "lru_width": lru.inner,
        "attention_window_size": window.window,
        "conv1d_width": lru.n_taps,
        "logits_soft_cap": config.logit_soft_cap,
        "rms_norm_eps": config.norm_eps,
        "hidden_activation": "gelu_pytorch_tanh",
        "block_types": [kinds[type(layer)] for layer in config.layers],
        "attention_bias": window.qkv_bias,
        "rope_parameters": {"partial_rotary_factor": 1.0, **write_rope(window)},
        "tie_word_embeddings": config.tie_embeddings,
    }


RECURRENT_GEMMA = Family(
    name="recurrent_gemma",
    matches=by_model_type("recurrent_gemma"),
    read=_read,
    write=_write,
    rows=rows,
    tied=("model.embed_tokens.weight", "lm_head.weight"),
)
