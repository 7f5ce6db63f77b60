"""Low-rank linear map, for decays and gates of mixers."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.linear import linear
from jaxzoo.utils.array_typing import Array, Float

Activation = Literal["none", "tanh", "sigmoid"]


class LowRank(nnx.Module):
    """`activation(x down) up (+ bias)`: `down` (d_in, rank), `up` (rank, d_out)."""

    def __init__(
        self,
        d_in: int,
        rank: int,
        d_out: int,
        *,
        std: float,
        bias: bool = False,
        activation: Activation = "none",
        rngs: nnx.Rngs,
    ) -> None:
        self.down: nnx.Linear = linear(d_in, rank, axes=("embed", None), std=std, rngs=rngs)
        self.up: nnx.Linear = linear(rank, d_out, axes=(None, "heads"), std=std, bias=bias, rngs=rngs)
        self.activation = activation

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """`(..., d_in) -> (..., d_out)` in the dtype of `x`."""
        hidden = self.down(x)
        if self.activation != "none":
            hidden = jnp.tanh(hidden) if self.activation == "tanh" else jax.nn.sigmoid(hidden)
        return self.up(hidden)
