"""Mixers in benchmarks and the gallery: all registered ones with default arguments, and some variants."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

from flax import nnx

from jaxzoo.mixers import MIXERS, MixerConfig, state_bytes
from jaxzoo.mixers.base import Inherited

Growth = Literal["1", "log t", "sqrt t", "t", "t^2"]
"""Term of a cost that grows with the length t, without its factor."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "base_conv filter=implicit": ("base_conv", {"filter": "implicit"}),
    "hyena form=release": ("hyena", {"form": "release"}),
    "landmark_cat block_size=8": ("landmark_cat", {"block_size": 8}),
}
"""Additional settings of registered mixers: name of the mixer, and the fields that differ."""


@functools.cache
def subjects() -> dict[str, MixerConfig]:
    """Returns all registered mixers by name, each followed by its variants."""
    found: dict[str, MixerConfig] = {}
    for name in sorted(MIXERS):
        found[name] = MIXERS[name]()
        for variant, (base, fields) in VARIANTS.items():
            if base == name:
                found[variant] = dataclasses.replace(found[name], **fields)
    return found


def family(config: MixerConfig) -> str:
    """Returns the folder of the mixer: attention, linear, conv or ssm."""
    return type(config).__module__.split(".")[-2]


def in_model(config: MixerConfig, width: int, length: int) -> MixerConfig:
    """Returns the config as inside a model of this width and length."""
    return config.inherit(Inherited(d_model=width, max_length=length, init_std=0.02, out_init_std=0.02))


def mixer_state_bytes(mixer: MixerConfig, length: int) -> int:
    """Returns the float32 state bytes of a mixer whose config is complete."""
    abstract = nnx.eval_shape(lambda: mixer.build(rngs=nnx.Rngs(0)))
    return state_bytes(abstract, capacity=length)


def train_growth(config: MixerConfig, width: int) -> Growth:
    """Returns the growth of the FLOPs per token with the length, by the mixer's own count; "t" means a quadratic
    cost."""
    return growth(lambda length: in_model(config, width, length).flops_per_token(length))


def growth(cost: Callable[[int], float], length: int = 2**12) -> Growth:
    """Returns the growth of a cost with the length, from its values at `length`, twice and four times that. The cost is
    the sum of a constant and one growing term; `length` must exceed windows, chunks and landmarks."""
    values = [cost(length * 2**i) for i in range(3)]
    first, second = values[1] - values[0], values[2] - values[1]
    if second < 1e-3 * values[0]:
        return "1"
    ratio = second / max(first, 1e-3 * second)
    return "log t" if ratio < 1.2 else "sqrt t" if ratio < 1.7 else "t" if ratio < 3 else "t^2"
