"""Mamba and Mamba-2 with the names of the authors' library, also used in Based's release."""

from collections.abc import Mapping
from typing import Any

from jaxzoo.interop.families.mamba import PLAIN, WITHOUT_EFFECT, only_mamba, read_mixer, rows as mamba_rows
from jaxzoo.interop.families.mamba2 import only_mamba2, rows as mamba2_rows
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import Family, Row
from jaxzoo.mixers import Mamba2Config, MixerConfig
from jaxzoo.models.model_config import LanguageModelConfig

OF_A_TRANSFORMER = ("use_fast_path", "n_embd", "n_head", "n_positions", "vocab_size", "scale_attn_by_inverse_layer_idx")
"""Fields that Based's Mamba has but does not read; rows of the vocabulary are those of the tensor."""


def rows(config: LanguageModelConfig, i: int) -> list[Row]:
    return (mamba2_rows if isinstance(config.layers[i], Mamba2Config) else mamba_rows)(config, i)


def _read_ssm(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    inner = fields.section("ssm_cfg") or Fields({}, fields.where)
    inner.require("bias", False)
    inner.require("conv_bias", True)
    kinds = {"Mamba1": _read_mamba1, "Mamba2": _read_mamba2}
    mixer = inner.choice("layer", of=kinds, default="Mamba1")(inner)
    inner.ignore("use_fast_path", "use_mem_eff_path", "chunk_size", "dt_min", "dt_max", "dt_init", "dt_scale")
    inner.ignore("dt_init_floor", "A_init_range", "conv_init")
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


def _read_mamba1(inner: Fields) -> MixerConfig:
    return read_mixer(inner, "d_state", "d_conv", "dt_rank")


def _read_mamba2(inner: Fields) -> MixerConfig:
    inner.require("rmsnorm", True)
    inner.require("norm_before_gate", False)
    inner.require("D_has_hdim", False)
    return Mamba2Config(
        d_state=inner.integer("d_state", default=128),
        expand=inner.integer("expand", default=2),
        head_dim=inner.integer("headdim", default=64),
        n_groups=inner.integer("ngroups", default=1),
        n_taps=inner.integer("d_conv", default=4),
        norm_eps=1e-5,
    )


def _write_ssm(config: LanguageModelConfig) -> dict[str, Any]:
    if config.norm_eps != 1e-5:
        raise ValueError(f"norm_eps={config.norm_eps}: a model of family mamba_ssm has 1e-05")
    if isinstance(config.layers[0], Mamba2Config):
        second = only_mamba2(config, "mamba_ssm")
        sizes = {"d_state": second.d_state, "expand": second.expand, "headdim": second.head_width}
        inner = {"layer": "Mamba2", **sizes, "ngroups": second.n_groups, "d_conv": second.n_taps}
    else:
        first = only_mamba(config, "mamba_ssm", norm=("rms", "layer"))
        inner = {"d_state": first.d_state, "expand": first.expand, "d_conv": first.n_taps, "dt_rank": first.rank}
    return {
        "d_model": config.d_model,
        "n_layer": config.n_layers,
        "vocab_size": config.padded_vocab_size,
        "ssm_cfg": inner,
        "rms_norm": config.norm == "rms",
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 1,
        "tie_embeddings": config.tie_embeddings,
    }


MAMBA_SSM = Family(
    name="mamba_ssm",
    matches=lambda content, names: "model_type" not in content and any("backbone.embedding." in name for name in names),
    read=_read_ssm,
    write=_write_ssm,
    ends=("backbone.embedding.weight", "backbone.norm_f", "lm_head.weight"),
    rows=rows,
    renames={r"^model\.": "", r"^backbone\.embeddings\.": "backbone.embedding."},
    left_out=(r".*metrics.*",),
)
