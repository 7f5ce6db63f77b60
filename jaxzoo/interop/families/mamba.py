"""Mamba, as transformers has it, and as the authors' library and Based's release do (`mamba_ssm`)."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxzoo.interop.families.common import only
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row, by_model_type, layers
from jaxzoo.interop.transforms import CONV, TRANSPOSED
from jaxzoo.mixers import MambaConfig
from jaxzoo.models.config import LanguageModelConfig

LAYER, OURS = "backbone.layers.{i}.mixer", "layers.{i}.mixer"
VECTORS = {"conv1d.bias": "conv_bias", "dt_proj.bias": "dt_bias", "A_log": "a_log", "D": "skip"}
TABLE = (
    Row("backbone.layers.{i}.norm.weight", "layers.{i}.mixer_norm.scale"),
    *(
        Row(f"{LAYER}.{name}.weight", f"{OURS}.{name}.kernel", TRANSPOSED)
        for name in ("in_proj", "x_proj", "dt_proj", "out_proj")
    ),
    Row(f"{LAYER}.conv1d.weight", f"{OURS}.taps", CONV),
    *(Row(f"{LAYER}.{a}", f"{OURS}.{b}") for a, b in VECTORS.items()),
)
NORM_BIAS = Row("backbone.layers.{i}.norm.bias", "layers.{i}.mixer_norm.bias")
INITIAL = ("time_step_scale", "time_step_min", "time_step_max", "time_step_init_scheme", "time_step_floor")
WITHOUT_EFFECT = (*INITIAL, "rescale_prenorm_residual", "residual_in_fp32", "use_mambapy", "use_associative_scan",
                  "fused_add_norm", "pad_vocab_size_multiple", "d_inner", "intermediate_size")  # fmt: skip
"""Fields of initial values, of speed, and those that follow from others."""
OF_A_TRANSFORMER = [
    "use_fast_path",
    "n_embd",
    "n_head",
    "n_positions",
    "vocab_size",
    "use_flash_attn",
    "fused_dropout_add_ln",
    "fused_mlp",
    "fused_bias_fc",
    "reorder_and_upcast_attn",
    "scale_attn_by_inverse_layer_idx",
]
"""Fields that Based's Mamba has besides, and does not read; rows of the vocabulary are those of the tensor."""


def _rows(config: LanguageModelConfig, embedding: str) -> Iterator[Row]:
    yield Row(embedding, "embedding")
    with_bias = config.norm == "layer"
    yield from layers((*TABLE, *(NORM_BIAS,) * with_bias), config.n_layers)
    yield Row("backbone.norm_f.weight", "final_norm.scale")
    if with_bias:
        yield Row("backbone.norm_f.bias", "final_norm.bias")
    if not config.tie_embeddings:
        yield Row("lm_head.weight", "head")


def _model(fields: Fields, mixer: MambaConfig, **others: Any) -> LanguageModelConfig:
    for name in WITHOUT_EFFECT:
        fields.optional(name)
    plain: dict[str, Any] = {"pad_vocab_multiple": 1, "max_length": 2048, "mlp": "none"}
    return LanguageModelConfig(pattern=(mixer,), **plain, **others)


def _read(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    for name, value in (("use_bias", False), ("use_conv_bias", True), ("hidden_act", "silu"), ("rms_norm", True)):
        fields.require(name, value)
    rank = fields.optional("time_step_rank", "auto")
    mixer = MambaConfig(
        d_state=fields.integer("state_size", default=16),
        expand=fields.integer("expand", default=2),
        n_taps=fields.integer("conv_kernel", default=4),
        dt_rank=None if rank == "auto" else fields.integer("time_step_rank"),
    )
    return _model(
        fields,
        mixer,
        d_model=fields.integer("hidden_size", "d_model"),
        n_layers=fields.integer("num_hidden_layers", "n_layer"),
        vocab_size=fields.integer("vocab_size"),
        norm="rms",
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
    )


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    only(config, "mamba", norm="rms", mlp="none")
    mixer = _mixer(config)
    return {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "vocab_size": config.padded_vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "state_size": mixer.d_state,
        "expand": mixer.expand,
        "conv_kernel": mixer.n_taps,
        "time_step_rank": mixer.rank,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _mixer(config: LanguageModelConfig) -> MambaConfig:
    for index, layer in enumerate(config.layers):
        if not isinstance(layer, MambaConfig) or layer != config.layers[0] or layer.discretization != "release":
            raise ValueError(f"layer {index}: {type(layer).__name__} has no place in a model of family mamba")
    return config.layers[0]  # type: ignore[return-value]


def _read_ssm(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    inner = fields.section("ssm_cfg") or Fields({}, fields.where)
    inner.require("layer", "Mamba1")
    for name, value in (("use_fast_path", True), ("conv_bias", True), ("bias", False)):
        inner.require(name, value)
    rank = inner.optional("dt_rank", "auto")
    mixer = MambaConfig(
        d_state=inner.integer("d_state", default=16),
        expand=inner.integer("expand", default=2),
        n_taps=inner.integer("d_conv", default=4),
        dt_rank=None if rank == "auto" else inner.integer("dt_rank"),
    )
    for name in ("dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor"):
        inner.optional(name)
    inner.check_all_read()
    for name in OF_A_TRANSFORMER:
        fields.optional(name)
    return _model(
        fields,
        mixer,
        d_model=fields.integer("d_model", default=1024),
        n_layers=fields.integer("n_layer", default=48),
        vocab_size=shapes["backbone.embedding.weight"][0],
        norm="rms" if fields.flag("rms_norm", True) else "layer",
        norm_eps=1e-5,
        tie_embeddings=fields.flag("tie_embeddings", True),
    )


def _write_ssm(config: LanguageModelConfig) -> dict[str, Any]:
    only(config, "mamba_ssm", norm=("rms", "layer"), mlp="none", norm_eps=1e-5)
    mixer = _mixer(config)
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
    rows=lambda config: _rows(config, "backbone.embeddings.weight"),
    renames={r"^backbone\.embedding\.": "backbone.embeddings."},
    tied=("backbone.embeddings.weight", "lm_head.weight"),
)
MAMBA_SSM = Family(
    name="mamba_ssm",
    matches=lambda content, names: "model_type" not in content and any("backbone.embedding." in name for name in names),
    read=_read_ssm,
    write=_write_ssm,
    rows=lambda config: _rows(config, "backbone.embedding.weight"),
    renames={r"^model\.": ""},
    left_out=(r".*metrics.*",),
    tied=("backbone.embedding.weight", "lm_head.weight"),
)
