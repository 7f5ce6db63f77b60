"""RWKV-6 by the names of flash-linear-attention: each layer becomes two of ours, time mix and channel mix."""

from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import only, read_model, written
from jaxzoo.interop.families.fla import ENDS, LAYER, check_layers, read_sizes, width
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm
from jaxzoo.interop.transforms import ONE_MINUS, SAME, TRANSPOSED, Transform
from jaxzoo.mixers import MixerConfig, RWKV4ChannelMixConfig, RWKV6TimeMixConfig
from jaxzoo.models.model_config import LanguageModelConfig

ATTN, FFN, TIME, CHANNEL = f"{LAYER}.attn", f"{LAYER}.ffn", "layers.{time}.mixer", "layers.{channel}.mixer"
OURS_OF_THEIRS, THEIRS_OF_OURS = [1, 2, 3, 0, 4], [3, 0, 1, 2, 4]
"""Mixtures of a token and the previous one: r, w, k, v, g there; w, k, v, r, g here."""
PROJECTIONS = {"r_proj.linear": "receptance", "k_proj.linear": "key", "v_proj.linear": "value", "g_proj.linear": "gate"}

SHIFTS = Transform("reordered", lambda x: (x[OURS_OF_THEIRS],), lambda x: (x[THEIRS_OF_OURS],))
DOWN = Transform(
    "reordered",
    lambda x: (x.reshape(5, -1, x.shape[1])[OURS_OF_THEIRS].reshape(x.shape).T,),
    lambda x: (x.T.reshape(5, -1, x.shape[0])[THEIRS_OF_OURS].reshape(x.T.shape),),
)
UP = Transform(
    "reordered",
    lambda x: (x.reshape(len(x), 5, -1).transpose(1, 2, 0)[OURS_OF_THEIRS],),
    lambda x: (x[THEIRS_OF_OURS].transpose(2, 0, 1).reshape(x.shape[2], -1),),
)


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    time: Any = config.layers[2 * i]
    heads = Transform("split by head", lambda x: (x.reshape(time.n_heads, -1),), lambda x: (x.reshape(-1),))
    others = {
        "x_proj.0.mu": ("shift_mean", SAME),
        "x_proj.0.linear.weight": ("shift_down", DOWN),
        "x_proj.2.weight": ("shift_up", UP),
        "x_bias": ("shifts", SHIFTS),
        "w_proj.linear.lora.0.weight": ("decay_down", TRANSPOSED),
        "w_proj.linear.lora.2.weight": ("decay_up", TRANSPOSED),
        "w_proj.linear.lora.2.bias": ("time_decay", heads),
        "bonus": ("time_first", SAME),
        "g_norm.weight": ("norm_scale", SAME),
        "g_norm.bias": ("norm_bias", SAME),
    }
    return [
        *(norm("model.layers.0.pre_norm", "embedding_norm", bias=True) if i == 0 else ()),
        *norm(f"{LAYER}.attn_norm", f"{TIME}_norm", bias=True),
        *norm(f"{LAYER}.ffn_norm", f"{CHANNEL}_norm", bias=True),
        *linears(ATTN, TIME, PROJECTIONS | {"o_proj": "output"}),
        *(Row(f"{ATTN}.{theirs}", f"{TIME}.{ours}", transform) for theirs, (ours, transform) in others.items()),
        *linears(FFN, CHANNEL, {"key.linear": "key", "receptance.linear": "receptance", "value": "value"}),
        *(Row(f"{FFN}.{name}.mu", f"{CHANNEL}.time_mix_{name}", ONE_MINUS) for name in ("key", "receptance")),
    ]


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    for name, value in (("norm_first", True), ("norm_bias", True), ("hidden_act", "sqrelu")):
        fields.require(name, value)
    d, n_layers, _ = read_sizes(fields)
    eps = fields.number("norm_eps", default=1e-5)
    units = int(d * fields.number("hidden_ratio", default=3.5))
    hidden = fields.optional_integer("intermediate_size") or 32 * -(-units // 32)
    sizes: dict[str, Any] = {
        "n_heads": fields.integer("num_heads", default=4),
        "key_width": width(fields, "expand_k", d, 0.5),
        "value_width": width(fields, "expand_v", d, 1.0),
        "shift_rank": fields.integer("proj_low_rank_dim", default=32),
        "decay_rank": fields.integer("gate_low_rank_dim", default=64),
        "norm_eps": fields.number("head_norm_eps", default=eps),  # of GGUF files: the authors' eps differs
    }
    pattern: list[MixerConfig] = []
    for i in range(n_layers):
        place: dict[str, Any] = {"layer_index": i, "n_layers": n_layers}
        pattern += [
            RWKV6TimeMixConfig(**sizes, **place),
            RWKV4ChannelMixConfig(hidden_width=hidden, share_power=3, **place),
        ]
    return read_model(
        fields,
        pattern,
        tied=False,
        d_model=d,
        n_layers=2 * n_layers,
        vocab_size=fields.integer("vocab_size", default=32000),
        max_length=fields.integer("max_position_embeddings", default=2048),
        mlp="none",
        norm="layer",
        norm_eps=eps,
        embed_norm=True,
    )


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    only(config, "rwkv6", RWKV6TimeMixConfig, RWKV4ChannelMixConfig, norm="layer", mlp="none", embed_norm=True)
    layers: Any = config.layers
    time, channel = layers[:2]
    own = {
        "num_hidden_layers": config.n_layers // 2,
        "intermediate_size": channel.hidden,
        "num_heads": time.n_heads,
        "expand_k": time.keys / config.d_model,
        "expand_v": time.values / config.d_model,
        "proj_low_rank_dim": time.shift_rank,
        "gate_low_rank_dim": time.decay_rank,
        "hidden_act": "sqrelu",
        "max_position_embeddings": config.max_length,
    }
    found = written(config, "RWKV6ForCausalLM", "rwkv6", "norm_eps", **own)
    check_layers(config, _read(Fields(found, "family rwkv6"), {}), "rwkv6")
    return found


RWKV6_FLA = Family(
    name="rwkv6_fla",
    matches=by_model_type("rwkv6"),
    read=_read,
    write=_write,
    ends=ENDS,
    rows=rows,
    layers_per_block=2,
)
