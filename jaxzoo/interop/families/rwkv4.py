"""RWKV-4, as transformers has it (`rwkv`): a layer of theirs is two of ours, time mix and channel mix.

`rescale_every` changes the scale of the residual in inference there, not the logits: it is read and left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxzoo.interop.families.common import only
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type
from jaxzoo.interop.transforms import ROW, TRANSPOSED
from jaxzoo.mixers import RWKV4ChannelMixConfig, RWKV4TimeMixConfig
from jaxzoo.models.config import LanguageModelConfig

TIME, CHANNEL = "rwkv.blocks.{i}.attention", "rwkv.blocks.{i}.feed_forward"
TABLE = (
    *(
        Row(f"rwkv.blocks.{{i}}.ln1.{a}", f"layers.{{time}}.mixer_norm.{b}")
        for a, b in (("weight", "scale"), ("bias", "bias"))
    ),
    *(Row(f"{TIME}.{name}", f"layers.{{time}}.mixer.{name}") for name in ("time_decay", "time_first")),
    *(Row(f"{TIME}.time_mix_{n}", f"layers.{{time}}.mixer.time_mix_{n}", ROW) for n in ("key", "value", "receptance")),
    *(
        Row(f"{TIME}.{n}.weight", f"layers.{{time}}.mixer.{n}.kernel", TRANSPOSED)
        for n in ("key", "value", "receptance", "output")
    ),
    *(
        Row(f"rwkv.blocks.{{i}}.ln2.{a}", f"layers.{{channel}}.mixer_norm.{b}")
        for a, b in (("weight", "scale"), ("bias", "bias"))
    ),
    *(Row(f"{CHANNEL}.time_mix_{n}", f"layers.{{channel}}.mixer.time_mix_{n}", ROW) for n in ("key", "receptance")),
    *(
        Row(f"{CHANNEL}.{n}.weight", f"layers.{{channel}}.mixer.{n}.kernel", TRANSPOSED)
        for n in ("key", "receptance", "value")
    ),
)


def rows(config: LanguageModelConfig) -> Iterator[Row]:
    """All tensors of a model."""
    yield Row("rwkv.embeddings.weight", "embedding")
    for theirs, ours in (("blocks.0.pre_ln", "embedding_norm"), ("ln_out", "final_norm")):
        yield Row(f"rwkv.{theirs}.weight", f"{ours}.scale")
        yield Row(f"rwkv.{theirs}.bias", f"{ours}.bias")
    for i in range(config.n_layers // 2):
        yield from (row.at(i=i, time=2 * i, channel=2 * i + 1) for row in TABLE)
    if not config.tie_embeddings:
        yield Row("head.weight", "head")


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
    return LanguageModelConfig(
        pattern=tuple(pattern),
        d_model=d,
        n_layers=2 * n_layers,
        vocab_size=fields.integer("vocab_size"),
        pad_vocab_multiple=1,
        max_length=fields.integer("context_length", "max_position_embeddings", default=1024),
        mlp="none",
        norm="layer",
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        embed_norm=True,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
    )


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    only(config, "rwkv4", norm="layer", mlp="none", embed_norm=True)
    kinds = (RWKV4TimeMixConfig, RWKV4ChannelMixConfig)
    for index, layer in enumerate(config.layers):
        if not isinstance(layer, kinds[index % 2]) or config.n_layers % 2:
            raise ValueError(f"layer {index}: {type(layer).__name__} has no place there in a model of family rwkv4")
    time, channel = config.layers[:2]
    assert isinstance(time, RWKV4TimeMixConfig)
    assert isinstance(channel, RWKV4ChannelMixConfig)
    return {
        "architectures": ["RwkvForCausalLM"],
        "model_type": "rwkv",
        "vocab_size": config.padded_vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers // 2,
        "attention_hidden_size": time.values,
        "intermediate_size": channel.hidden,
        "context_length": config.max_length,
        "rescale_every": 0,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    }


RWKV4 = Family(
    name="rwkv4",
    matches=by_model_type("rwkv"),
    read=_read,
    write=_write,
    rows=rows,
    tied=("rwkv.embeddings.weight", "head.weight"),
)
