"""Gated DeltaNet-2 (GDN-2, 2026, arXiv 2605.22791): the delta rule with channel-wise decay, erase and write gates.

With q', k', v of `jaxzoo/mixers/linear/delta.py`, for every head:

    log a_t = -exp(A_log) softplus(x_t W_1 W_2 + dt_bias)        b_t = sigmoid(x_t W_b)        w_t = sigmoid(x_t W_w)
    S_t = (I - k'_t (b_t . k'_t)^T) Diag(a_t) S_{t-1} + k'_t (w_t . v_t)^T        o_t = S_t^T q'_t / sqrt(k)
    y = concat(rms(o_h) . sigmoid(x W_3 W_4 + c)) W_O

a and b have a number per channel of the keys, w one per channel of the values; the state decays before it is read. With
b = w = beta it is Kimi Delta Attention. `negative` doubles b, not w. The form is that of
fla's layer and of its `naive_recurrent_gdn2`; A_log has one number per head of keys (KDA: of values), and value heads
of a group share q, k, a and b.

fla's names: `f_proj` is `decay`, `b_proj` is `beta_proj`, `w_proj` is `write_proj`, `g_proj` is `gate` (the second
with bias c), `o_norm.weight` is `norm.scale`, `o_proj` is `out_proj`; `q_conv1d`, `k_conv1d`, `v_conv1d` are joined in
`conv.taps`. Initialisation: exp(A_log) uniform in [1, 16], dt_bias as in Mamba-2; both are not decayed. The rank of
both maps is the value width of a head.

State: S, k v numbers per head of values, and the last n_taps - 1 projected q, k and v.

Good at: As Kimi Delta Attention; it erases some channels of a key and keeps others.
Paper: Gated DeltaNet-2 2026, https://arxiv.org/abs/2605.22791
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.decay import a_log_parameter, dt_bias_parameter, time_step
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.low_rank import LowRank
from jaxzoo.layers.variables import along_last
from jaxzoo.mixers.linear.delta import DeltaConfig, DeltaMixer
from jaxzoo.ops.delta_rule import Removal
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedDeltaNet2Config(DeltaConfig):
    """Config of `GatedDeltaNet2`."""

    general = True

    @property
    def betas(self) -> int:
        return self.keys

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, n_value_heads=4, key_width=6, value_width=12, n_taps=3, negative=True)

    def flops_per_token(self, length: int) -> float:
        """See `delta_flops`; the low-rank maps to decay and gate, and the projection of the write gate."""
        low_rank = 2.0 * self.head_value * (2 * self.width + self.keys + self.values)
        return self.delta_flops(length) + low_rank + 2.0 * self.width * self.values


class GatedDeltaNet2(DeltaMixer):
    """The delta rule with gates per channel; `step` costs O(k v) per head.

    Parameters of `DeltaMixer`, with `beta_proj` (d, key_width); `write_proj` (d, value_width), `decay.down` (d, v),
    `decay.up` (v, key_width), `a_log` (n_heads,), `dt_bias` (key_width,), `gate.down` (d, v), `gate.up` (v,
    value_width) with bias, `norm.scale` (v,).
    """

    config: GatedDeltaNet2Config

    def __init__(self, config: GatedDeltaNet2Config, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        d, rank, std = config.width, config.head_value, config.std
        self.write_proj: nnx.Linear = linear(d, config.values, axes=("embed", "heads"), std=std, rngs=rngs)
        self.decay: LowRank = LowRank(d, rank, config.keys, std=std, rngs=rngs)
        self.a_log: nnx.Param[jax.Array] = a_log_parameter(config.n_heads, low=1.0, high=16.0, rngs=rngs)
        self.dt_bias: nnx.Param[jax.Array] = dt_bias_parameter(config.keys, rngs=rngs)
        self.gate: LowRank = LowRank(d, rank, config.values, std=std, bias=True, rngs=rngs)
        self.norm: GatedNorm = GatedNorm(config.head_value, eps=config.norm_eps, activation="sigmoid")

    def _gate(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        return self.gate(x)

    def _decay(self, x: Float[Array, "... d"]) -> Float[Array, "... g k"]:
        step = split_heads(time_step(self.decay(x), self.dt_bias[...]), self.config.n_heads)
        return -along_last(jnp.exp(self.a_log[...])[:, None], step) * step

    def _recurrence(
        self,
        x: Float[Array, "*b d"],
        q: Float[Array, "*b g k"],
        k: Float[Array, "*b g k"],
        v: Float[Array, "*b h v"],
        s: Float[Array, "b h k v"] | None,
        ids: Int[Array, "b t"] | None,
    ) -> tuple[Float[Array, "*b h v"], Float[Array, "b h k v"]]:
        erase = split_heads(self._beta(x), self.config.n_heads)
        write = split_heads(jax.nn.sigmoid(self.write_proj(x).astype(jnp.float32)), self.config.heads)
        q, k, decay = self._normalized(q), self._normalized(k), self._decay(x)
        # The op's removal reads the state before its decay: the decay moves into the vector that reads.
        reads = (jnp.exp(decay) * erase * k.astype(jnp.float32)).astype(k.dtype)
        q, k, decay, reads = (self._for_values(y) for y in (q, k, decay, reads))
        v = write.astype(v.dtype) * v
        return self._rule(s, q, k, v, ids, removal=Removal(reads, -k), log_decay=decay)
