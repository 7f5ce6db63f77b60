"""The channel mixers: SwiGLU and GELU."""

from typing import Literal

import jax
from flax import nnx

from jaxzoo.array_typing import Array, Float
from jaxzoo.layers.linear import linear


def default_width(kind: Literal["swiglu", "gelu"], d_model: int) -> int:
    """Hidden units where none are given: 4 d for GELU; for SwiGLU 8/3 d rounded up to a multiple of 256 (as the
    released Based code and Llama do), which keeps the parameter count of the GELU form."""
    if kind == "gelu":
        return 4 * d_model
    return -(-int(8 * d_model / 3) // 256) * 256


class MLP(nnx.Module):
    """`down(silu(gate(x)) * up(x))` (SwiGLU, Shazeer 2020) or `down(gelu(up(x)))` with the exact GELU.

    Args:
      kind: which of the two.
      d_model: input and output width.
      width: hidden units.
      bias: biases in all projections; they start at 0.
      std: standard deviation of the normal initialisation of gate and up.
      out_std: the same for down.
      rngs: its `params` stream.
    """

    def __init__(
        self,
        kind: Literal["swiglu", "gelu"],
        d_model: int,
        width: int,
        *,
        bias: bool,
        std: float,
        out_std: float,
        rngs: nnx.Rngs,
    ):
        self.kind = kind
        if kind == "swiglu":
            self.gate_proj = linear(d_model, width, axes=("embed", "mlp"), std=std, bias=bias, rngs=rngs)
        self.up_proj = linear(d_model, width, axes=("embed", "mlp"), std=std, bias=bias, rngs=rngs)
        self.down_proj = linear(width, d_model, axes=("mlp", "embed"), std=out_std, bias=bias, rngs=rngs)

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """`(..., d) -> (..., d)` in the dtype of `x`."""
        hidden = self.up_proj(x)
        if self.kind == "swiglu":
            hidden = jax.nn.silu(self.gate_proj(x)) * hidden
        else:
            hidden = jax.nn.gelu(hidden, approximate=False)
        return self.down_proj(hidden)
