"""DeltaNet (Yang et al. 2024, arXiv 2406.06484): linear attention that replaces the value stored for a key.

With q', k', v and beta of `jaxzoo/mixers/linear/delta.py` (short convolutions, SiLU, L2 norm), for each head:

    S_t = S_{t-1} + beta_t k'_t (v_t - k'_t^T S_{t-1})^T        o_t = S_t^T q'_t / sqrt(k)
    y = concat(rms(o_h)) W_O

The norm has a learned scale, shared by all heads. Options of the public code (fla): `gate` multiplies the norm by
silu(x W_G); `qk_activation` replaces the SiLU of queries and keys; `qk_norm="sum"` divides by the sum of the entries.
Compared with fla's parameters: its `q_conv1d`, `k_conv1d` and
`v_conv1d` are joined in `conv.taps`, `b_proj` is `beta_proj`, `o_norm.weight` is `norm.scale`.

Good at: More recall than sums of the same size: a write replaces the value of a key instead of adding to it.
Paper: Yang et al. 2024, https://arxiv.org/abs/2406.06484
"""

import dataclasses
from typing import Literal, Self

import jax
from flax import nnx

from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear
from jaxzoo.mixers.linear.delta import DeltaConfig, DeltaMixer
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(DeltaConfig):
    """Config of `DeltaNet`."""

    gate: bool = False
    """Multiplies the normalized heads by silu(x W_G)."""
    qk_activation: Literal["silu", "relu", "elu", "identity"] = "silu"
    """Activation of queries and keys; "elu" is elu(x) + 1."""
    qk_norm: Literal["l2", "sum"] = "l2"
    """Divides queries and keys by their length, or by the sum of their entries (for activations above 0)."""

    @property
    def plain_channels(self) -> int:
        return 0 if self.qk_activation == "silu" else 2 * self.keys

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, key_width=6, value_width=10, n_taps=3)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of `delta_flops` and of the gate's projection, if any."""
        return self.delta_flops(length) + 2.0 * self.width * self.values * self.gate


class DeltaNet(DeltaMixer):
    """The delta rule without decay; the state has a fixed size, and `step` costs O(k v) per head.

    Parameters of `DeltaMixer`, `norm.scale` (value_width / heads,), and `gate_proj` (d, value_width) with a gate.
    """

    config: DeltaNetConfig

    def __init__(self, config: DeltaNetConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        if config.gate:
            self.gate_proj: nnx.Linear = linear(
                config.width, config.values, axes=("embed", "heads"), std=config.std, rngs=rngs
            )
        self.norm: GatedNorm = GatedNorm(config.head_value, eps=config.norm_eps)

    def _normalized(self, x: Float[Array, "... k"]) -> Float[Array, "... k"]:
        if self.config.qk_activation == "relu":
            x = jax.nn.relu(x)
        elif self.config.qk_activation == "elu":
            x = jax.nn.elu(x) + 1
        return x / x.sum(-1, keepdims=True) if self.config.qk_norm == "sum" else super()._normalized(x)

    def _decay(self, x: Float[Array, "... d"]) -> None:
        return None
