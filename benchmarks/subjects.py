"""The mixers that benchmarks and the gallery show: those registered, as they are built without arguments, and more."""

import dataclasses
import functools
from typing import Any

from jaxzoo.mixers import MIXERS, MixerConfig
from jaxzoo.mixers.base import Inherited
from jaxzoo.models.accounting import Growth, growth

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "base_conv filter=implicit": ("base_conv", {"filter": "implicit"}),
    "hyena form=release": ("hyena", {"form": "release"}),
    "landmark_cat block_size=8": ("landmark_cat", {"block_size": 8}),
}
"""Further settings of registered mixers: the name of the mixer, and the fields that differ."""


@functools.cache
def subjects() -> dict[str, MixerConfig]:
    """Configs by name: every registered mixer, followed by its variants."""
    found: dict[str, MixerConfig] = {}
    for name in sorted(MIXERS):
        found[name] = MIXERS[name]()
        for variant, (base, fields) in VARIANTS.items():
            if base == name:
                found[variant] = dataclasses.replace(found[name], **fields)
    return found


def family(config: MixerConfig) -> str:
    """The folder of the mixer: attention, linear, conv or ssm."""
    return type(config).__module__.split(".")[-2]


def in_model(config: MixerConfig, width: int, length: int) -> MixerConfig:
    """The mixer as a model of this width and length has it."""
    return config.inherit(Inherited(d_model=width, max_length=length, init_std=0.02, out_init_std=0.02))


def train_growth(config: MixerConfig, width: int) -> Growth:
    """Growth of the FLOPs per token with the length of the sequence, by the mixer's own count.

    "t" means a quadratic cost of a sequence; whatever grows more slowly is promised to be sub-quadratic.
    """
    return growth(lambda length: in_model(config, width, length).flops_per_token(length))
