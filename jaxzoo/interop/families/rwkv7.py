"""RWKV-7, by the names of the authors' release (`rwkv7`) and by those of flash-linear-attention (`rwkv7_fla`).

Each layer becomes two of ours, time mix and channel mix. The release has no config.json: a folder with its tensors
needs one with `{"model_type": "rwkv7"}`; all sizes follow from the tensors. Norms have an eps of 1e-5, that of the
heads 64e-5. The unused `v0`, `v1` and `v2` of block 0 are ignored.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxzoo.interop.families.common import matrix_shape, only, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, linears, norm
from jaxzoo.interop.transforms import ROW, ROWS, SAME, TRANSPOSED, Transform
from jaxzoo.mixers import MixerConfig, RWKV7ChannelMixConfig, RWKV7TimeMixConfig
from jaxzoo.models.model_config import LanguageModelConfig

MAPS = {"w": "decay", "a": "rate", "v": "value_share", "g": "gate"}
"""Our low-rank maps by their letter."""
RANKS = {"decay_rank": ("decay", 64), "rate_rank": ("a", 64), "gate_rank": ("gate", 128), "value_rank": ("v", 16)}
"""Names of our ranks in flash-linear-attention, and their defaults there."""
EPS, HEAD_EPS = 1e-5, 64e-5


class _Names(NamedTuple):
    """Names that differ between the two; `{n}` is the letter of a low-rank map."""

    first_norm: str  # of the embedding
    layer: str
    norms: tuple[str, str]  # before time mix and channel mix
    time: str
    projections: tuple[str, str, str, str]  # receptance, key, value, output
    head_norm: str
    low_rank: tuple[str, str, str]  # down, up, bias
    matrix: Transform  # of the low-rank maps
    vector: Transform


RELEASE = _Names(
    first_norm="blocks.0.ln0",
    layer="blocks.{i}",
    norms=("ln1", "ln2"),
    time="att",
    projections=("receptance", "key", "value", "output"),
    head_norm="ln_x",
    low_rank=("{n}1", "{n}2", "{n}0"),
    matrix=SAME,
    vector=ROW,
)
FLA = _Names(
    first_norm="model.layers.0.pre_norm",
    layer="model.layers.{i}",
    norms=("attn_norm", "ffn_norm"),
    time="attn",
    projections=("r_proj", "k_proj", "v_proj", "o_proj"),
    head_norm="g_norm",
    low_rank=("{n}_lora.lora.0.weight", "{n}_lora.lora.2.weight", "{n}_lora.lora.2.bias"),
    matrix=TRANSPOSED,
    vector=SAME,
)


def _rows(names: _Names, config: LanguageModelConfig, i: int) -> Iterator[Row]:
    if i == 0:
        yield from norm(names.first_norm, "embedding_norm", bias=True)
    theirs, ours = f"{names.layer}.{names.time}", "layers.{time}.mixer"
    yield from norm(f"{names.layer}.{names.norms[0]}", "layers.{time}.mixer_norm", bias=True)
    yield Row(tuple(f"{theirs}.x_{n}" for n in "rwkvag"), f"{ours}.shifts", ROWS)
    yield from linears(theirs, ours, dict(zip(names.projections, RELEASE.projections, strict=True)))
    down, up, bias = names.low_rank
    for n, low_rank in MAPS.items():
        if n != "v" or i > 0:
            yield Row(f"{theirs}.{down.format(n=n)}", f"{ours}.{low_rank}.down.kernel", names.matrix)
            yield Row(f"{theirs}.{up.format(n=n)}", f"{ours}.{low_rank}.up.kernel", names.matrix)
            if n != "g":
                yield Row(f"{theirs}.{bias.format(n=n)}", f"{ours}.{low_rank}.up.bias", names.vector)
    for name, vector in (("k_k", "removal_scale"), ("k_a", "rate_share")):
        yield Row(f"{theirs}.{name}", f"{ours}.{vector}", names.vector)
    yield Row(f"{theirs}.r_k", f"{ours}.bonus")
    for end, vector in (("weight", "norm_scale"), ("bias", "norm_bias")):
        yield Row(f"{theirs}.{names.head_norm}.{end}", f"{ours}.{vector}")
    theirs, ours = f"{names.layer}.ffn", "layers.{channel}.mixer"
    yield from norm(f"{names.layer}.{names.norms[1]}", "layers.{channel}.mixer_norm", bias=True)
    yield Row(f"{theirs}.x_k", f"{ours}.shift", names.vector)
    yield from linears(theirs, ours, ("key", "value"))


def _model(pattern: list[MixerConfig], **others: Any) -> LanguageModelConfig:
    plain: dict[str, Any] = {"pad_vocab_multiple": 1, "mlp": "none", "norm": "layer", "embed_norm": True}
    return LanguageModelConfig(pattern=tuple(pattern), n_layers=len(pattern), tie_embeddings=False, **plain, **others)


def _read_release(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    def size(name: str, axis: int) -> int:
        return matrix_shape(fields, shapes, name)[axis]

    n_layers = len({found[1] for found in (re.match(r"blocks\.(\d+)\.", name) for name in shapes) if found})
    pattern: list[MixerConfig] = []
    for i in range(n_layers):
        block = f"blocks.{i}"
        time = RWKV7TimeMixConfig(
            n_heads=size(f"{block}.att.r_k", 0),
            decay_rank=size(f"{block}.att.w1", 1),
            rate_rank=size(f"{block}.att.a1", 1),
            gate_rank=size(f"{block}.att.g1", 1),
            value_rank=size(f"{block}.att.v1", 1) if i else 32,
            norm_eps=HEAD_EPS,
            layer_index=i,
            n_layers=n_layers,
        )
        hidden = size(f"{block}.ffn.key.weight", 0)
        pattern += [time, RWKV7ChannelMixConfig(hidden_width=hidden, layer_index=i, n_layers=n_layers)]
    return _model(
        pattern,
        d_model=size("emb.weight", 1),
        vocab_size=size("emb.weight", 0),
        max_length=fields.integer("context_length", default=4096),
        norm_eps=EPS,
    )


def _read_fla(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    for name, value in (("norm_first", True), ("norm_bias", True), ("hidden_act", "sqrelu")):
        fields.require(name, value)
    fields.ignore("attn_mode", "use_l2warp")
    fields.require("tie_word_embeddings", False)
    d, n_layers = fields.integer("hidden_size", default=2048), fields.integer("num_hidden_layers", default=24)
    fields.require("value_dim", None, d, [d] * n_layers)
    heads = fields.integer("num_heads", default=max(d // 64, 1))
    width = fields.optional_integer("head_dim", 64) or max(d // heads, 1)
    ratio = fields.number("hidden_ratio", default=4.0)
    hidden = fields.optional_integer("intermediate_size") or 32 * -(-int(d * ratio) // 32)
    eps = fields.number("norm_eps", default=EPS)
    ranks: dict[str, Any] = {
        ours: fields.integer(f"{theirs}_low_rank_dim", default=default) for ours, (theirs, default) in RANKS.items()
    }
    pattern: list[MixerConfig] = []
    for i in range(n_layers):
        time = RWKV7TimeMixConfig(
            n_heads=max(d // width, 1), norm_eps=width * eps, layer_index=i, n_layers=n_layers, **ranks
        )
        pattern += [time, RWKV7ChannelMixConfig(hidden_width=hidden, layer_index=i, n_layers=n_layers)]
    return _model(
        pattern,
        d_model=d,
        vocab_size=fields.integer("vocab_size", default=32000),
        max_length=fields.integer("max_position_embeddings", default=2048),
        norm_eps=eps,
    )


def _layers(config: LanguageModelConfig, family: str, **others: Any) -> list[RWKV7TimeMixConfig]:
    """Returns the time mixes of a model. Raises `ValueError` unless it is RWKV-7 as published: the layers, the layer
    whose values are mixed in, or the heads differ."""
    plain: dict[str, Any] = {"norm": "layer", "mlp": "none", "embed_norm": True, "tie_embeddings": False}
    only(config, family, RWKV7TimeMixConfig, RWKV7ChannelMixConfig, **plain, **others)
    found = [layer for layer in config.layers if isinstance(layer, RWKV7TimeMixConfig)]
    for index, time in enumerate(found):
        if time.mixes_values != (index > 0):
            raise ValueError(f"layer {2 * index}: value_residual={time.mixes_values}: all but layer 0 have it there")
    return found


def _write_release(config: LanguageModelConfig) -> dict[str, Any]:
    for index, time in enumerate(_layers(config, "rwkv7", norm_eps=EPS)):
        if time.norm_eps != HEAD_EPS:
            raise ValueError(f"layer {2 * index}: norm_eps={time.norm_eps}: a model of family rwkv7 has {HEAD_EPS}")
    return {"model_type": "rwkv7", "context_length": config.max_length}


def _write_fla(config: LanguageModelConfig) -> dict[str, Any]:
    times = _layers(config, "rwkv7_fla")
    first, hidden = times[-1], {layer.hidden for layer in config.layers if isinstance(layer, RWKV7ChannelMixConfig)}
    sizes = ("n_heads", "decay_rank", "rate_rank", "gate_rank", "norm_eps")
    if any(getattr(time, name) != getattr(first, name) for time in times for name in sizes) or len(hidden) > 1:
        raise ValueError("layers of family rwkv7_fla have the same heads, ranks and widths")
    if any(time.value_rank != first.value_rank for time in times[1:]):
        raise ValueError("layers of family rwkv7_fla have the same value_rank")
    if abs(first.norm_eps - first.head_width * config.norm_eps) > 1e-6 * first.norm_eps:
        raise ValueError(f"norm_eps={first.norm_eps} of the heads: family rwkv7_fla has norm_eps times their width")
    own = {
        "intermediate_size": hidden.pop(),
        "num_hidden_layers": len(times),
        "head_dim": first.head_width,
        **{f"{theirs}_low_rank_dim": getattr(first, ours) for ours, (theirs, _) in RANKS.items()},
        "value_dim": [config.d_model] * len(times),
        "hidden_act": "sqrelu",
        "norm_first": True,
        "norm_bias": True,
        "max_position_embeddings": config.max_length,
    }
    return written(config, "RWKV7ForCausalLM", "rwkv7", "norm_eps", **own)


RWKV7 = Family(
    name="rwkv7",
    matches=lambda content, names: content.get("model_type") == "rwkv7" and "blocks.0.att.r_k" in names,
    read=_read_release,
    write=_write_release,
    ends=("emb.weight", "ln_out", "head.weight"),
    rows=lambda config, i: _rows(RELEASE, config, i),
    layers_per_block=2,
    left_out=(r"blocks\.0\.att\.v[012]",),
)
RWKV7_FLA = Family(
    name="rwkv7_fla",
    matches=lambda content, names: content.get("model_type") in ("rwkv7", "rwkv7_fla"),
    read=_read_fla,
    write=_write_fla,
    ends=("model.embeddings.weight", "model.norm", "lm_head.weight"),
    rows=lambda config, i: _rows(FLA, config, i),
    layers_per_block=2,
)
