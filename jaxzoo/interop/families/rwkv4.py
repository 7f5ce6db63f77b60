"""RWKV-4 in the format of transformers (`rwkv`): each layer becomes two of ours, time mix and channel mix.

`rescale_every` changes the scale of the residual in inference, not the logits: it is ignored.
"""

from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import only, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm
from jaxzoo.interop.transforms import ROW
from jaxzoo.mixers import RWKV4ChannelMixConfig, RWKV4TimeMixConfig
from jaxzoo.models.model_config import LanguageModelConfig

BLOCK, TIME, CHANNEL = "rwkv.blocks.{i}", "layers.{time}.mixer", "layers.{channel}.mixer"


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    time, channel = f"{BLOCK}.attention", f"{BLOCK}.feed_forward"
    return [
        *(norm("rwkv.blocks.0.pre_ln", "embedding_norm", bias=True) if i == 0 else ()),
        *norm(f"{BLOCK}.ln1", f"{TIME}_norm", bias=True),
        *(Row(f"{time}.{name}", f"{TIME}.{name}") for name in ("time_decay", "time_first")),
        *(Row(f"{time}.time_mix_{n}", f"{TIME}.time_mix_{n}", ROW) for n in ("key", "value", "receptance")),
        *linears(time, TIME, ("key", "value", "receptance", "output")),
        *norm(f"{BLOCK}.ln2", f"{CHANNEL}_norm", bias=True),
        *(Row(f"{channel}.time_mix_{n}", f"{CHANNEL}.time_mix_{n}", ROW) for n in ("key", "receptance")),
        *linears(channel, CHANNEL, ("key", "receptance", "value")),
    ]


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    d, n_layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
    fields.optional("rescale_every")
    values = fields.integer("attention_hidden_size", default=d)
    hidden = fields.integer("intermediate_size", default=4 * d)
    pattern = [
        mixer
        for i in range(n_layers)
        for mixer in (
            RWKV4TimeMixConfig(value_width=values, layer_index=i, n_layers=n_layers),
            RWKV4ChannelMixConfig(hidden_width=hidden, layer_index=i, n_layers=n_layers),
        )
    ]
    return read_model(
        fields,
        pattern,
        tied=False,
        n_layers=2 * n_layers,
        max_length=fields.integer("context_length", "max_position_embeddings", default=1024),
        mlp="none",
        norm="layer",
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        embed_norm=True,
    )


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    only(config, "rwkv4", RWKV4TimeMixConfig, RWKV4ChannelMixConfig, norm="layer", mlp="none", embed_norm=True)
    layers: Any = config.layers
    time, channel = layers[:2]
    if any(x.values != time.values for x in layers[::2]) or any(x.hidden != channel.hidden for x in layers[1::2]):
        raise ValueError("layers of family rwkv4 have the same widths")
    own = {
        "num_hidden_layers": config.n_layers // 2,
        "attention_hidden_size": time.values,
        "intermediate_size": channel.hidden,
        "context_length": config.max_length,
        "rescale_every": 0,
    }
    return written(config, "RwkvForCausalLM", "rwkv", "layer_norm_epsilon", **own)


RWKV4 = Family(
    name="rwkv4",
    matches=by_model_type("rwkv"),
    read=_read,
    write=_write,
    ends=("rwkv.embeddings.weight", "rwkv.ln_out", "head.weight"),
    rows=rows,
    layers_per_block=2,
)
