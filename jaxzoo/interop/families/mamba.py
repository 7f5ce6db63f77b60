"""Mamba and Falcon-Mamba in the format of transformers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.common import only, read_model, written
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, linears, norm
from jaxzoo.interop.transforms import CONV
from jaxzoo.mixers import MambaConfig
from jaxzoo.models.model_config import LanguageModelConfig

LAYER, OURS = "backbone.layers.{i}.mixer", "layers.{i}.mixer"
VECTORS = {"conv1d.bias": "conv_bias", "dt_proj.bias": "dt_bias", "A_log": "a_log", "D": "skip"}
PROJECTIONS = ("in_proj", "x_proj", "dt_proj", "out_proj")
INITIAL = ("time_step_scale", "time_step_min", "time_step_max", "time_step_init_scheme", "time_step_floor")
OTHERS = ("rescale_prenorm_residual", "use_mambapy", "use_associative_scan", "d_inner", "intermediate_size")
WITHOUT_EFFECT = (*INITIAL, *OTHERS)
"""Fields of initial values, of speed, and those that follow from others."""
OF_THE_AUTHORS = ("d_model", "n_layer", "ssm_cfg")
"""Fields of the authors' library that folders of transformers keep besides their own."""


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    return [
        *norm("backbone.layers.{i}.norm", "layers.{i}.mixer_norm", bias=config.norm == "layer"),
        *linears(LAYER, OURS, PROJECTIONS),
        Row(f"{LAYER}.conv1d.weight", f"{OURS}.taps", CONV),
        *(Row(f"{LAYER}.{a}", f"{OURS}.{b}") for a, b in VECTORS.items()),
    ]


PLAIN: dict[str, Any] = {"pad_vocab_multiple": 1, "max_length": 2048, "mlp": "none"}
"""Fields of every model of the family."""


def read_mixer(fields: Fields, state: str, taps: str, rank: str) -> MambaConfig:
    return MambaConfig(
        d_state=fields.integer(state, default=16),
        expand=fields.integer("expand", default=2),
        n_taps=fields.integer(taps, default=4),
        dt_rank=None if fields.optional(rank, "auto") == "auto" else fields.integer(rank),
    )


def _read(
    fields: Fields, shapes: Mapping[str, tuple[int, ...]], eps_of_projections: float = 0.0
) -> LanguageModelConfig:
    for name, value in (("use_bias", False), ("use_conv_bias", True), ("hidden_act", "silu"), ("rms_norm", True)):
        fields.require(name, value)
    mixer = read_mixer(fields, "state_size", "conv_kernel", "time_step_rank")
    mixer = dataclasses.replace(mixer, projected_norm_eps=eps_of_projections)
    fields.ignore(*WITHOUT_EFFECT, *OF_THE_AUTHORS)
    eps = fields.number("layer_norm_epsilon", default=1e-5)
    tied = fields.flag("tie_embeddings", True)  # of the authors; transformers' own field is read before it
    return read_model(fields, [mixer], tied=tied, norm="rms", norm_eps=eps, **PLAIN)


def _read_falcon(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    eps = fields.number("mixer_rms_eps", default=1e-6)
    found: Any = _read(fields, shapes, eps)
    inner, mixer = shapes.get("backbone.layers.0.mixer.D", (0,))[0], found.pattern[0]
    expand = inner // found.d_model or mixer.expand  # Falcon-Mamba-7B has 2, and its config.json says 16
    return dataclasses.replace(found, pattern=(dataclasses.replace(mixer, expand=expand),))


def _write_falcon(config: LanguageModelConfig) -> dict[str, Any]:
    mixer: Any = config.layers[0]
    eps = getattr(mixer, "projected_norm_eps", 0.0)
    if not eps:
        raise ValueError("layers of family falcon_mamba have norms of delta, B and C")
    plain = dataclasses.replace(config, pattern=(dataclasses.replace(mixer, projected_norm_eps=0.0),))
    names = {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
    return {**_write(plain), **names, "mixer_rms_eps": eps}


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    mixer = only_mamba(config, "mamba", norm="rms")
    sizes = {"state_size": mixer.d_state, "expand": mixer.expand, "conv_kernel": mixer.n_taps}
    own = {**sizes, "time_step_rank": mixer.rank}
    return written(config, "MambaForCausalLM", "mamba", "layer_norm_epsilon", **own)


def only_mamba(config: LanguageModelConfig, family: str, **expected: Any) -> MambaConfig:
    """Returns the one mixer of a model. Raises `ValueError` unless it is Mamba in every layer."""
    only(config, family, MambaConfig, mlp="none", **expected)
    mixer: Any = config.layers[0]
    if mixer.projected_norm_eps:
        raise ValueError(f"projected_norm_eps={mixer.projected_norm_eps}: family {family} has no such norms")
    if len(set(config.layers)) > 1 or mixer.discretization != "release":
        raise ValueError(f"layers of family {family} are Mamba of one config, of discretization 'release'")
    return mixer


MAMBA = Family(
    name="mamba",
    matches=by_model_type("mamba"),
    read=_read,
    write=_write,
    ends=("backbone.embeddings.weight", "backbone.norm_f", "lm_head.weight"),
    rows=rows,
    renames={r"^backbone\.embedding\.": "backbone.embeddings."},
)
FALCON_MAMBA = dataclasses.replace(
    MAMBA,
    name="falcon_mamba",
    matches=by_model_type("falcon_mamba"),
    read=_read_falcon,
    write=_write_falcon,
)
