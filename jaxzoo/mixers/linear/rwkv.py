"""Shared parts of the RWKV mixers: the depth of a layer, on which its initial values depend, and these values."""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.checked import NonNegativeInt, PositiveInt
from jaxzoo.layers.linear import linear
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import Capabilities, MixerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKVConfig(MixerConfig):
    """Place in the depth and initialisation of a mixer of RWKV; abstract."""

    layer_index: NonNegativeInt = 0
    """l, the place from the front of the layer that initial token shifts and decays are made for, counted from 0. A
    layer of RWKV is a time mix and a channel mix, so both have the same l."""
    n_layers: PositiveInt = 1
    """L, the layers of RWKV in the model. At l = 0 only the norm of RWKV-5 depends on it."""
    projections: Literal["normal", "release"] = "normal"
    """Initial projections: normal (`init_std` and `out_init_std`), or orthogonal and zero as in the authors' code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("layer_index", self.layer_index < self.n_layers, f"must be below n_layers={self.n_layers}")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(segments=True, sequence_parallel=True)

    @property
    def scanned_as(self) -> MixerConfig:
        return dataclasses.replace(self, layer_index=0, n_layers=1)

    @property
    def depth(self) -> float:
        """l / (L - 1): 0 for the first layer, 1 for the last of several."""
        return self.layer_index / max(self.n_layers - 1, 1)


def projection(
    config: RWKVConfig,
    d_in: int,
    d_out: int,
    *,
    axes: tuple[Any, ...],
    std: float,
    gain: float | None = None,
    rngs: nnx.Rngs,
) -> nnx.Linear:
    """A projection without bias. In the authors' code it starts as an orthogonal matrix times `gain`, which may be 0;
    None: sqrt(d_out / d_in), at least 1 (their code up to RWKV-5)."""
    layer = linear(d_in, d_out, axes=axes, std=std, rngs=rngs)
    if config.projections == "release":
        gain = math.sqrt(max(1.0, d_out / d_in)) if gain is None else gain
        orthogonal = nnx.initializers.orthogonal(gain)
        layer.kernel[...] = orthogonal(rngs.params(), (d_in, d_out)) if gain else jnp.zeros((d_in, d_out))
    return layer


def share(config: RWKVConfig, power: float = 1.0, *, more: float = 0.0) -> nnx.Param[jax.Array]:
    """Shares of the token itself in a token shift, `(d,)`: `(i / d)^{power (1 - l / L)} + more` for channel i."""
    exponent = power * (1 - config.layer_index / config.n_layers)
    initial = (np.arange(config.width) / config.width) ** exponent + more
    return parameter(jnp.asarray(initial, jnp.float32), ("embed",), decay=False)


def decay_curve(config: RWKVConfig, width: int, *, lowest: float, span: float) -> jax.Array:
    """Initial logarithms of decay rates, float32 `(width,)`: `lowest + span (i / (width - 1))^{0.7 + 1.3 depth}`."""
    place = np.arange(width) / max(width - 1, 1)
    return jnp.asarray(lowest + span * place ** (0.7 + 1.3 * config.depth), jnp.float32)


def zigzag(width: int) -> np.ndarray:
    """0, 1, -1, 0, 1, .. `(width,)`: sets neighbouring channels apart."""
    return (np.arange(width) + 1) % 3 - 1.0
