"""Mamba, as transformers has it, and as the authors' library and Based's release do (`mamba_ssm`)."""

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
OF_A_TRANSFORMER = ("use_fast_path", "n_embd", "n_head", "n_positions", "vocab_size", "scale_attn_by_inverse_layer_idx")
"""Fields that Based's Mamba has besides, and does not read; rows of the vocabulary are those of the tensor."""


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    """The rows of a layer."""
    return [
        *norm("backbone.layers.{i}.norm", "layers.{i}.mixer_norm", bias=config.norm == "layer"),
        *linears(LAYER, OURS, PROJECTIONS),
        Row(f"{LAYER}.conv1d.weight", f"{OURS}.taps", CONV),
        *(Row(f"{LAYER}.{a}", f"{OURS}.{b}") for a, b in VECTORS.items()),
    ]


PLAIN: dict[str, Any] = {"pad_vocab_multiple": 1, "max_length": 2048, "mlp": "none"}
"""Fields of every model of the family."""


def _read_mixer(fields: Fields, state: str, taps: str, rank: str) -> MambaConfig:
    """The mixer by the names of its fields."""
    return MambaConfig(
        d_state=fields.integer(state, default=16),
        expand=fields.integer("expand", default=2),
        n_taps=fields.integer(taps, default=4),
        dt_rank=None if fields.optional(rank, "auto") == "auto" else fields.integer(rank),
    )


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    for name, value in (("use_bias", False), ("use_conv_bias", True), ("hidden_act", "silu"), ("rms_norm", True)):
        fields.require(name, value)
    mixer = _read_mixer(fields, "state_size", "conv_kernel", "time_step_rank")
    fields.ignore(*WITHOUT_EFFECT)
    eps = fields.number("layer_norm_epsilon", default=1e-5)
    return read_model(fields, [mixer], tied=True, norm="rms", norm_eps=eps, **PLAIN)


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    mixer = _mixer(config, "mamba", norm="rms")
    sizes = {"state_size": mixer.d_state, "expand": mixer.expand, "conv_kernel": mixer.n_taps}
    own = {**sizes, "time_step_rank": mixer.rank}
    return written(config, "MambaForCausalLM", "mamba", "layer_norm_epsilon", **own)


def _mixer(config: LanguageModelConfig, family: str, **expected: Any) -> MambaConfig:
    only(config, family, MambaConfig, mlp="none", **expected)
    mixer: Any = config.layers[0]
    if len(set(config.layers)) > 1 or mixer.discretization != "release":
        raise ValueError(f"layers of family {family} are Mamba of one config, of discretization 'release'")
    return mixer


def _read_ssm(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    inner = fields.section("ssm_cfg") or Fields({}, fields.where)
    inner.require("layer", "Mamba1")
    for name, value in (("use_fast_path", True), ("conv_bias", True), ("bias", False)):
        inner.require(name, value)
    mixer = _read_mixer(inner, "d_state", "d_conv", "dt_rank")
    inner.ignore("dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor")
    inner.check_all_read()
    fields.ignore(*WITHOUT_EFFECT, *OF_A_TRANSFORMER)
    return LanguageModelConfig(
        pattern=(mixer,),
        d_model=fields.integer("d_model", default=1024),
        n_layers=fields.integer("n_layer", default=48),
        vocab_size=shapes["backbone.embedding.weight"][0],
        norm="rms" if fields.flag("rms_norm", True) else "layer",
        norm_eps=1e-5,
        tie_embeddings=fields.flag("tie_embeddings", True),
        **PLAIN,
    )


def _write_ssm(config: LanguageModelConfig) -> dict[str, Any]:
    mixer = _mixer(config, "mamba_ssm", norm=("rms", "layer"), norm_eps=1e-5)
    return {
        "d_model": config.d_model,
        "n_layer": config.n_layers,
        "vocab_size": config.padded_vocab_size,
        "ssm_cfg": {"d_state": mixer.d_state, "expand": mixer.expand, "d_conv": mixer.n_taps, "dt_rank": mixer.rank},
        "rms_norm": config.norm == "rms",
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 1,
        "tie_embeddings": config.tie_embeddings,
    }


MAMBA = Family(
    name="mamba",
    matches=by_model_type("mamba"),
    read=_read,
    write=_write,
    ends=("backbone.embeddings.weight", "backbone.norm_f", "lm_head.weight"),
    rows=rows,
    renames={r"^backbone\.embedding\.": "backbone.embeddings."},
)
MAMBA_SSM = Family(
    name="mamba_ssm",
    matches=lambda content, names: "model_type" not in content and any("backbone.embedding." in name for name in names),
    read=_read_ssm,
    write=_write_ssm,
    ends=("backbone.embedding.weight", "backbone.norm_f", "lm_head.weight"),
    rows=rows,
    renames={r"^model\.": ""},
    left_out=(r".*metrics.*",),
)
