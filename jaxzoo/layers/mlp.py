"""MLPs: GELU, and the gated SwiGLU, GEGLU and GLU.

With the hidden units of `up` and, if gated, of `gate`:

| `kind` | hidden units before `down` | source |
| --- | --- | --- |
| gelu | gelu(up(x)), the exact GELU | GPT-NeoX, Zoology's MLP |
| gelu_tanh | the same with GELU's tanh approximation | GPT-2 |
| swiglu | silu(gate(x)) * up(x) | Shazeer 2020, Llama, Based |
| geglu | gelu(gate(x)) * up(x) | Shazeer 2020; the Zoology release's GLU, at 4 d units with biases |
| geglu_tanh | the same with GELU's tanh approximation | Gemma, RecurrentGemma |
| glu | sigmoid(gate(x)) * up(x) | Dauphin et al. 2017; the default of the Based release's GatedMlp |

Deviation: `out_std` applies to `down`. The Zoology release scales the initial weights of the layer named `fc2`, which
is the gate in its GLU.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.linear import joint_linear, linear, regroups_matmuls
from jaxzoo.utils.array_typing import Array, Float

MLPKind = Literal["swiglu", "geglu", "geglu_tanh", "glu", "gelu", "gelu_tanh"]


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}
"""Activation by kind, for kinds without a gate."""
GATES: Mapping[str, Callable[[Array], Array]] = {
    "swiglu": jax.nn.silu,
    "geglu": ACTIVATIONS["gelu"],
    "geglu_tanh": ACTIVATIONS["gelu_tanh"],
    "glu": jax.nn.sigmoid,
}
"""Activation of the gate by kind, for gated kinds."""


def default_width(kind: MLPKind, d_model: int) -> int:
    """Default number of hidden units: 4 d for GELU; if gated 8/3 d rounded up to a multiple of 256 (as the released
    Based code and Llama do), which keeps the parameter count of the GELU form."""
    if kind in ACTIVATIONS:
        return 4 * d_model
    return -(-int(8 * d_model / 3) // 256) * 256


def n_matrices(kind: MLPKind) -> int:
    """Number of (d_model, hidden units) matrices."""
    return 3 if kind in GATES else 2


class MLP(nnx.Module):
    """MLP: `down` of the hidden units in the table of the module docstring.

    Args:
      kind: row of the table.
      d_model: input and output width.
      width: number of hidden units.
      bias: adds biases to all projections; they start at 0.
      std: standard deviation of the normal initialisation of gate and up.
      out_std: standard deviation for down.
      rngs: the `params` stream is used.
    """

    def __init__(
        self, kind: MLPKind, d_model: int, width: int, *, bias: bool, std: float, out_std: float, rngs: nnx.Rngs
    ):
        self.kind = kind
        if kind in GATES:
            self.gate_proj: nnx.Linear = linear(d_model, width, axes=("embed", "mlp"), std=std, bias=bias, rngs=rngs)
        self.up_proj: nnx.Linear = linear(d_model, width, axes=("embed", "mlp"), std=std, bias=bias, rngs=rngs)
        self.down_proj: nnx.Linear = linear(width, d_model, axes=("mlp", "embed"), std=out_std, bias=bias, rngs=rngs)

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """`(..., d) -> (..., d)` in the dtype of `x`."""
        if self.kind not in GATES:
            return self.down_proj(ACTIVATIONS[self.kind](self.up_proj(x)))
        if regroups_matmuls(x):
            return self.down_proj(gated(self.kind, joint_linear(x, self.gate_proj, self.up_proj)))
        return self.down_proj(GATES[self.kind](self.gate_proj(x)) * self.up_proj(x))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gated(kind: MLPKind, gate_and_up: Float[Array, "... two_w"]) -> Float[Array, "... w"]:
    """Hidden units of the gate's outputs and, after them on the last axis, those of `up`."""
    gate, up = jnp.split(gate_and_up, 2, axis=-1)
    return GATES[kind](gate) * up


def _gated_forward(kind: MLPKind, gate_and_up: Array) -> tuple[Array, Array]:
    return gated(kind, gate_and_up), gate_and_up


def _gated_backward(kind: MLPKind, gate_and_up: Array, d_hidden: Array) -> tuple[Array]:
    """VJP: both halves are written by one kernel, into one array."""
    gate, up = jnp.split(gate_and_up, 2, axis=-1)
    activated, pull_back = jax.vjp(GATES[kind], gate)
    halves = [*pull_back(d_hidden * up), d_hidden * activated]
    return (jax.lax.optimization_barrier(jnp.concatenate(halves, axis=-1)),)


gated.defvjp(_gated_forward, _gated_backward)
