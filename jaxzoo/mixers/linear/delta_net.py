"""DeltaNet (Yang et al. 2024, arXiv 2406.06484): linear attention that replaces what it has stored for a key.

With q', k', v and beta of `jaxzoo/mixers/linear/delta.py` (short convolutions, SiLU, L2 norm), for every head:

    S_t = S_{t-1} + beta_t k'_t (v_t - k'_t^T S_{t-1})^T        o_t = S_t^T q'_t / sqrt(k)
    y = concat(rms(o_h)) W_O

The norm has a learned scale, one for all heads. `gate` multiplies it by silu(x W_G), as an option of the public code
(fla) does. Compared with fla's parameters: its `q_conv1d`, `k_conv1d` and `v_conv1d` are joined in `conv.taps`.
"""

import dataclasses
from typing import ClassVar, Self

from flax import nnx

from jaxzoo.array_typing import Array, Float
from jaxzoo.layers.gated_norm import GatedNorm
from jaxzoo.layers.linear import linear
from jaxzoo.mixers.base import About
from jaxzoo.mixers.linear.delta import DeltaConfig, DeltaMixer


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(DeltaConfig):
    """Config of `DeltaNet`."""

    about: ClassVar[About] = About(
        paper="Yang et al. 2024",
        url="https://arxiv.org/abs/2406.06484",
        good_at=(
            "Recall beyond what sums of the same size hold: it overwrites the value of a key instead of adding to it."
        ),
    )

    gate: bool = False
    """Multiplies the normalized heads by silu(x W_G)."""

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, key_width=6, value_width=10, n_taps=3)

    def build(self, *, rngs: nnx.Rngs) -> "DeltaNet":
        return DeltaNet(self, rngs=rngs)

    def flops_per_token(self, length: int) -> float:
        """See `delta_flops`; the gate's projection where there is one."""
        return self.delta_flops(length) + 2.0 * self.width * self.values * self.gate


class DeltaNet(DeltaMixer):
    """The delta rule without decay; the state has a fixed size, and `step` costs O(k v) per head.

    Parameters of `DeltaMixer`, `norm.scale` (value_width / heads,), and `gate_proj` (d, value_width) with a gate.
    """

    config: DeltaNetConfig

    def __init__(self, config: DeltaNetConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        if config.gate:
            self.gate_proj = linear(config.width, config.values, axes=("embed", "heads"), std=config.std, rngs=rngs)
        self.norm = GatedNorm(config.head_value, eps=config.norm_eps)

    def _decay(self, x: Float[Array, "... d"]) -> None:
        return None

    def _merge(self, x: Float[Array, "... d"], o: Float[Array, "... h v"]) -> Float[Array, "... d"]:
        gate = self.gate_proj(x).reshape(o.shape) if self.config.gate else None
        return self.out_proj(self.norm(o, gate).reshape(*x.shape[:-1], self.config.values))
