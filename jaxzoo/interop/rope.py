"""Rotary positions in config.json: the newer `rope_parameters`, or the older single fields."""

import math
from typing import Any

from jaxzoo.interop.fields import Fields
from jaxzoo.layers.rotary_scaling import NO_SCALING, RotaryScaling
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig

KINDS = {"default": "none", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}
"""Our kinds of scaling by the checkpoint's name."""


def read_rope(
    fields: Fields,
    *,
    max_length: int,
    fraction: float = 1.0,
    base: float = 10000.0,
    older_theta: str = "rope_theta",
    older_fraction: str = "partial_rotary_factor",
) -> dict[str, Any]:
    """Reads fields of `MultiHeadConfig` for rotary positions from config.json. `max_length` is its
    `max_position_embeddings`; `fraction`, the rotated share of a head, and `base` are defaults; `older_theta` and
    `older_fraction` name base and share in older folders. Raises `ValueError` for an unsupported kind of scaling, or a
    field of another type."""
    base = fields.number(older_theta, default=base, low=1)
    share = fields.number(older_fraction, default=fraction)
    newer, older = fields.section("rope_parameters"), fields.section("rope_scaling")
    section = newer or older
    scaling = NO_SCALING
    if section is not None:
        base = section.number("rope_theta", default=base, low=1)
        share = section.number("partial_rotary_factor", default=share)
        section.ignore("mrope_section", "mrope_interleaved")  # of pictures: the positions of text are all equal
        kind = section.choice("rope_type", "type", of=KINDS, default="default")
        scaling = _read_scaling(section, kind, max_length)
        section.check_all_read()
    return {"positions": "rotary", "rotary_base": base, "rotary_fraction": share, "rotary_scaling": scaling}


def _read_scaling(section: Fields, kind: str, max_length: int) -> RotaryScaling:
    if kind == "none":
        section.optional("factor")
        return NO_SCALING
    original = section.integer("original_max_position_embeddings", default=max_length)
    factor = section.number("factor", default=max(max_length / original, 1.0) if kind == "yarn" else None, low=1)
    if kind == "linear":
        return RotaryScaling(kind="linear", factor=factor, original_length=original)
    if kind == "llama3":
        low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
        return RotaryScaling(kind="llama3", factor=factor, original_length=original, beta_slow=low, beta_fast=high)
    temperature = section.optional("attention_factor")
    scale, whole = section.optional("mscale"), section.optional("mscale_all_dim")
    if temperature is None and scale and whole:
        temperature = _temperature(factor, scale) / _temperature(factor, whole)
    return RotaryScaling(
        kind="yarn",
        factor=factor,
        original_length=original,
        beta_fast=section.number("beta_fast", default=32.0),
        beta_slow=section.number("beta_slow", default=1.0),
        ramp="channels" if section.flag("truncate", True) else "unrounded_channels",
        temperature=temperature,
    )


def _temperature(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_fields(
    attention: MultiHeadConfig, *, older_theta: str = "rope_theta", older_fraction: str = "partial_rotary_factor"
) -> dict[str, Any]:
    """Returns the rotary fields of a config.json in both forms: transformers 5 reads `rope_parameters`; transformers 4
    and most other readers know only the older single fields, and assume a base of 10,000 without them."""
    newer = {"partial_rotary_factor": 1.0, **write_rope(attention)}
    scaling = {key: value for key, value in newer.items() if key not in ("rope_theta", "partial_rotary_factor")}
    return {
        "rope_parameters": newer,
        older_theta: newer["rope_theta"],
        older_fraction: newer["partial_rotary_factor"],
        "rope_scaling": None if scaling["rope_type"] == "default" else scaling,
    }


def write_rope(attention: MultiHeadConfig) -> dict[str, Any]:
    """Returns the `rope_parameters` of an attention. Raises `ValueError` for positions, or a kind of scaling, that
    others lack."""
    scaling = attention.rotary_scaling
    if attention.positions != "rotary" or attention.rotary_interleaved:
        raise ValueError(
            f"positions={attention.positions!r}, rotary_interleaved={attention.rotary_interleaved}: no such "
            "model in other libraries; they have rotary positions of channels half a head apart"
        )
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": attention.rotary_base}
    if attention.rotary_fraction != 1:
        found["partial_rotary_factor"] = attention.rotary_fraction
    if scaling.kind == "none":
        return found
    found |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "linear":
        return found
    found["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "llama3":
        return found | {"low_freq_factor": scaling.beta_slow, "high_freq_factor": scaling.beta_fast}
    if scaling.ramp == "rotations":
        raise ValueError("rotary_scaling.ramp='rotations', the paper's, is in no other library; train with 'channels'")
    found |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.ramp == "channels"}
    return found | ({} if scaling.temperature is None else {"attention_factor": scaling.temperature})
