"""Norms of the heads' outputs after a recurrence (RetNet's group norm), with and without parameters."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.utils.array_typing import Array, Float

HeadNorm = Literal["layer", "rms", "none"]


def head_norm(y: Float[Array, "... v"], kind: HeadNorm, *, eps: float) -> Float[Array, "... v"]:
    """RMS norm `y / rms(y)`, or layer norm (of `y - mean(y)`), over the last axis, without parameters.

    Computed in float32; `eps` is added to the mean square.
    """
    if kind == "none":
        return y
    x = y.astype(jnp.float32)
    if kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    return (x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + np.float32(eps))).astype(y.dtype)


class GatedNorm(nnx.Module):
    """RMS norm of heads, or of groups of channels, with a learned scale and an output gate.

    `activation(gate) . scale . norm(x)`; with `gate_first`, `scale . norm(activation(gate) . x)`.

    The norm is over each of `groups` equal parts of the last axis, in float32. `scale` (width,) starts at 1.
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float,
        groups: int = 1,
        activation: Literal["silu", "sigmoid"] = "silu",
        gate_first: bool = False,
        axis: str | None = None,
    ) -> None:
        self.scale: nnx.Param[jax.Array] = parameter(jnp.ones((width,)), (axis,), decay=False)
        self.eps: float = eps
        self.groups: int = groups
        self.gate_first: bool = gate_first
        self.activation: Literal["silu", "sigmoid"] = activation

    def __call__(self, x: Float[Array, "... v"], gate: Float[Array, "... v"] | None = None) -> Float[Array, "... v"]:
        """`(..., width)` in the dtype of `x`; None: no gate."""
        if gate is not None:
            gate = jax.nn.silu(gate) if self.activation == "silu" else jax.nn.sigmoid(gate)
        if gate is not None and self.gate_first:
            x, gate = x * gate, None
        grouped = x.reshape(*x.shape[:-1], self.groups, x.shape[-1] // self.groups)
        y = head_norm(grouped, "rms", eps=self.eps).reshape(x.shape)
        y = y * along_last(self.scale[...], y)
        return y if gate is None else y * gate
