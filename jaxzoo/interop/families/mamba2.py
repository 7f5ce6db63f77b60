"""Mamba-2, as transformers has it."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxzoo.interop.families.common import only
from jaxzoo.interop.families.mamba import WITHOUT_EFFECT
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, layers
from jaxzoo.interop.transforms import CONV, TRANSPOSED
from jaxzoo.mixers import Mamba2Config
from jaxzoo.models.config import LanguageModelConfig

LAYER, OURS = "backbone.layers.{i}.mixer", "layers.{i}.mixer"
OPTIONS = ("norm_before_gate", "normalize", "dt_limit", "proj_bias", "conv_bias", "skip_per_channel", "n_levels")
"""Fields of our mixer that stay at their defaults."""
VECTORS = {"conv1d.bias": "conv.bias", "dt_bias": "dt_bias", "A_log": "a_log", "D": "skip", "norm.weight": "norm.scale"}
TABLE = (
    Row("backbone.layers.{i}.norm.weight", "layers.{i}.mixer_norm.scale"),
    *(Row(f"{LAYER}.{name}.weight", f"{OURS}.{name}.kernel", TRANSPOSED) for name in ("in_proj", "out_proj")),
    Row(f"{LAYER}.conv1d.weight", f"{OURS}.conv.taps", CONV),
    *(Row(f"{LAYER}.{a}", f"{OURS}.{b}") for a, b in VECTORS.items()),
)


def rows(config: LanguageModelConfig) -> Iterator[Row]:
    """All tensors of a model."""
    yield Row("backbone.embeddings.weight", "embedding")
    yield from layers(TABLE, config.n_layers)
    yield Row("backbone.norm_f.weight", "final_norm.scale")
    if not config.tie_embeddings:
        yield Row("lm_head.weight", "head")


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    for name, value in (("use_bias", False), ("use_conv_bias", True), ("hidden_act", "silu"), ("rms_norm", True)):
        fields.require(name, value)
    for name in (*WITHOUT_EFFECT, "time_step_rank", "chunk_size", "num_heads"):
        fields.optional(name)
    limit = fields.optional("time_step_limit")
    if limit is not None and not (isinstance(limit, list) and limit[:1] == [0.0] and _is_infinite(limit[1:])):
        fields.refuse("time_step_limit", "must be [0.0, Infinity]: time steps are not cut off here")
    d, eps = fields.integer("hidden_size"), fields.number("layer_norm_epsilon", default=1e-5)
    mixer = Mamba2Config(
        d_state=fields.integer("state_size", default=128),
        expand=fields.integer("expand", default=2),
        head_dim=fields.integer("head_dim", default=64),
        n_groups=fields.integer("n_groups", default=8),
        n_taps=fields.integer("conv_kernel", default=4),
        norm_eps=eps,
    )
    return LanguageModelConfig(
        pattern=(mixer,),
        d_model=d,
        n_layers=fields.integer("num_hidden_layers"),
        vocab_size=fields.integer("vocab_size"),
        pad_vocab_multiple=1,
        max_length=2048,
        mlp="none",
        norm="rms",
        norm_eps=eps,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
    )


def _is_infinite(values: list[Any]) -> bool:
    """Whether the upper limit is infinity, which JSON writers spell in several ways."""
    return len(values) == 1 and values[0] in (float("inf"), "Infinity", "inf", {"__float__": "Infinity"})


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    only(config, "mamba2", norm="rms", mlp="none")
    mixer = config.layers[0]
    for index, layer in enumerate(config.layers):
        if not isinstance(layer, Mamba2Config) or layer != mixer:
            raise ValueError(f"layer {index}: {type(layer).__name__} has no place in a model of family mamba2")
    assert isinstance(mixer, Mamba2Config)
    for name in OPTIONS:
        if getattr(mixer, name) != getattr(Mamba2Config, name):
            raise ValueError(f"{name}={getattr(mixer, name)!r}: a model of family mamba2 has no such layers")
    if mixer.norm_eps != config.norm_eps:
        raise ValueError(f"norm_eps={config.norm_eps}: a model of family mamba2 has one for all, also {mixer.norm_eps}")
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "vocab_size": config.padded_vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_heads": mixer.heads,
        "head_dim": mixer.head_width,
        "state_size": mixer.d_state,
        "expand": mixer.expand,
        "n_groups": mixer.n_groups,
        "conv_kernel": mixer.n_taps,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    }


MAMBA2 = Family(
    name="mamba2",
    matches=by_model_type("mamba2"),
    read=_read,
    write=_write,
    rows=rows,
    tied=("backbone.embeddings.weight", "lm_head.weight"),
)
