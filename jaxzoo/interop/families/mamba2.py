"""Mamba-2 in the format of transformers."""

from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import only, read_model, written
from jaxzoo.interop.families.mamba import OF_THE_AUTHORS, PLAIN, WITHOUT_EFFECT
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm
from jaxzoo.interop.transforms import CONV
from jaxzoo.mixers import Mamba2Config
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "backbone.layers.{i}.mixer", "layers.{i}.mixer"
OPTIONS = ("norm_before_gate", "normalize", "dt_limit", "proj_bias", "conv_bias", "skip_per_channel", "n_levels")
"""Fields of our mixer that stay at their defaults."""
VECTORS = {"conv1d.bias": "conv.bias", "dt_bias": "dt_bias", "A_log": "a_log", "D": "skip", "norm.weight": "norm.scale"}


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    return [
        *norm("backbone.layers.{i}.norm", "layers.{i}.mixer_norm"),
        *linears(LAYER, OURS, ("in_proj", "out_proj")),
        Row(f"{LAYER}.conv1d.weight", f"{OURS}.conv.taps", CONV),
        *(Row(f"{LAYER}.{a}", f"{OURS}.{b}") for a, b in VECTORS.items()),
    ]


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    for name, value in (("use_bias", False), ("use_conv_bias", True), ("hidden_act", "silu"), ("rms_norm", True)):
        fields.require(name, value)
    fields.ignore(*WITHOUT_EFFECT, *OF_THE_AUTHORS, "time_step_rank", "chunk_size", "num_heads")
    fields.ignore("norm_before_gate")  # of Mamba-Codestral, where it is true: transformers gates first all the same
    limit = fields.optional("time_step_limit")
    infinity = (float("inf"), "Infinity", "inf", {"__float__": "Infinity"})  # as JSON writers spell it
    if limit is not None and not (isinstance(limit, list) and any(limit == [0.0, each] for each in infinity)):
        fields.refuse("time_step_limit", "must be [0.0, Infinity]: time steps are not cut off here")
    eps = fields.number("layer_norm_epsilon", default=1e-5)
    mixer = Mamba2Config(
        d_state=fields.integer("state_size", default=128),
        expand=fields.integer("expand", default=2),
        head_dim=fields.integer("head_dim", default=64),
        n_groups=fields.integer("n_groups", default=8),
        n_taps=fields.integer("conv_kernel", default=4),
        norm_eps=eps,
    )
    return read_model(fields, [mixer], tied=False, norm="rms", norm_eps=eps, **PLAIN)


def only_mamba2(config: LanguageModelConfig, family: str) -> Mamba2Config:
    """Returns the one mixer of a model. Raises `ValueError` unless it is plain Mamba-2 in every layer."""
    only(config, family, Mamba2Config, norm="rms", mlp="none")
    mixer: Any = config.layers[0]
    if len(set(config.layers)) > 1:
        raise ValueError(f"layers of family {family} are Mamba-2 of one config")
    for name in OPTIONS:
        if getattr(mixer, name) != getattr(Mamba2Config, name):
            raise ValueError(f"{name}={getattr(mixer, name)!r}: a model of family {family} has no such layers")
    if mixer.norm_eps != config.norm_eps:
        raise ValueError(f"norm_eps={config.norm_eps}: family {family} has one for all, also {mixer.norm_eps}")
    return mixer


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    mixer = only_mamba2(config, "mamba2")
    own = {
        "num_heads": mixer.heads,
        "head_dim": mixer.head_width,
        "state_size": mixer.d_state,
        "expand": mixer.expand,
        "n_groups": mixer.n_groups,
        "conv_kernel": mixer.n_taps,
    }
    return written(config, "Mamba2ForCausalLM", "mamba2", "layer_norm_epsilon", **own)


MAMBA2 = Family(
    name="mamba2",
    matches=by_model_type("mamba2"),
    read=_read,
    write=_write,
    ends=("backbone.embeddings.weight", "backbone.norm_f", "lm_head.weight"),
    rows=rows,
)
