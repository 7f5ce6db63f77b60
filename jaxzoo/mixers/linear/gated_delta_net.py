"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): the delta rule with the decay of Mamba-2 and an output gate.

With q', k', v and beta of `jaxzoo/mixers/linear/delta.py`, for every head:

    log a_t = -exp(A_log) softplus(x_t W_a + dt_bias)
    S_t = a_t S_{t-1} + beta_t k'_t (v_t - a_t k'_t^T S_{t-1})^T        o_t = S_t^T q'_t / sqrt(k)
    y = concat(rms(o_h) . silu(x W_G)) W_O

`n_value_heads` groups value heads under one head of queries and keys, as Qwen3-Next does.

| ours                           | fla's GatedDeltaNet              | Qwen3-Next of transformers                       |
| ------------------------------ | -------------------------------- | ------------------------------------------------ |
| `q_proj`, `k_proj`, `v_proj`   | the same                         | parts of `in_proj_qkvz`, by head of keys         |
| `gate_proj`                    | `g_proj`                         | its part z                                       |
| `beta_proj`, `decay_proj`      | `b_proj`, `a_proj`               | parts b and a of `in_proj_ba`, by head of keys   |
| `conv.taps`                    | `q_conv1d`, `k_conv1d`, `v_conv1d` | `conv1d`                                       |
| `a_log`, `dt_bias`             | `A_log`, `dt_bias`               | the same                                         |
| `norm.scale`, `out_proj`       | `o_norm.weight`, `o_proj`        | `norm.weight`, `out_proj`                        |

Initialisation: exp(A_log) uniform in (0, 16], dt_bias as in Mamba-2; both are not decayed. Widths: None is d_model
for keys and for values; the paper's models have keys of 3/4 d_model and values of 3/2 d_model. Qwen3-Next starts
dt_bias at 1. Without `gate` (fla's `use_gate=False`) the heads are normalized only.

Good at: Recall and text: it overwrites single keys or forgets all at once; the linear layer of Qwen3-Next.
Paper: Yang et al. 2024, https://arxiv.org/abs/2412.06464
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.decay import a_log_parameter, dt_bias_parameter, time_step
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear
from jaxzoo.layers.variables import along_last
from jaxzoo.mixers.linear.delta import DeltaConfig, DeltaMixer
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedDeltaNetConfig(DeltaConfig):
    """Config of `GatedDeltaNet`."""

    gate: bool = True
    """Multiplies the normalized heads by silu(x W_G)."""

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, n_value_heads=4, key_width=8, value_width=16, n_taps=3)

    def flops_per_token(self, length: int) -> float:
        """See `delta_flops`; the projections of gate and decay."""
        return self.delta_flops(length) + 2.0 * self.width * (self.values * self.gate + self.heads)


class GatedDeltaNet(DeltaMixer):
    """The delta rule with a decay per token and head; `step` costs O(k v) per head.

    Parameters of `DeltaMixer`, `decay_proj` (d, heads), `a_log`, `dt_bias` (heads,), `gate_proj` (d, value_width),
    `norm.scale` (value_width / heads,).
    """

    config: GatedDeltaNetConfig

    def __init__(self, config: GatedDeltaNetConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        d, std, axes = config.width, config.std, ("embed", "heads")
        self.decay_proj: nnx.Linear = linear(d, config.heads, axes=axes, std=std, rngs=rngs)
        self.a_log: nnx.Param[jax.Array] = a_log_parameter(config.heads, low=0.0, high=16.0, rngs=rngs)
        self.dt_bias: nnx.Param[jax.Array] = dt_bias_parameter(config.heads, rngs=rngs)
        if config.gate:
            self.gate_proj: nnx.Linear = linear(d, config.values, axes=axes, std=std, rngs=rngs)
        self.norm: GatedNorm = GatedNorm(config.head_value, eps=config.norm_eps)

    def _decay(self, x: Float[Array, "... d"]) -> Float[Array, "... h"]:
        step = time_step(self.decay_proj(x), self.dt_bias[...])
        return -jnp.exp(along_last(self.a_log[...], step)) * step
