"""Kimi Delta Attention (KDA, Kimi Team 2025, arXiv 2510.26692): the delta rule with a decay per channel of the keys.

With q', k', v and beta of `jaxzoo/mixers/linear/delta.py`, and low-rank maps to decay and gate, for each head:

    log a_t = -exp(A_log) softplus(x_t W_1 W_2 + dt_bias)        (k,)
    S_t = Diag(a_t) S_{t-1} + beta_t k'_t (v_t - k'_t^T Diag(a_t) S_{t-1})^T        o_t = S_t^T q'_t / sqrt(k)
    y = concat(rms(o_h) . sigmoid(x W_3 W_4 + b)) W_O

A_log has one number per value head, dt_bias one per channel of the keys of each. With a `lower_bound` L below 0 (fla's
and Kimi Linear's `safe_gate`), log a_t = L sigmoid(exp(A_log) (x_t W_1 W_2 + dt_bias)). fla's names: `decay` is
`f_proj`, `gate` is `g_proj` (the second with a bias, as there), `norm.scale` is `o_norm.weight`; its `q_conv1d`,
`k_conv1d` and `v_conv1d` are joined in `conv.taps`. With `n_value_heads` each value head of a group has its own decay.
transformers' Kimi Linear has no bias b.

Initialisation: exp(A_log) uniform in [1, 16], or 1 with a lower bound, and dt_bias as in Mamba-2 (some versions of fla:
0); both without weight decay. The rank of both maps is by default the value width of a head.

Good at: As Gated DeltaNet, with a decay for every channel of the keys; the linear layer of Kimi Linear.
Paper: Kimi Team 2025, https://arxiv.org/abs/2510.26692
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.decay import a_log_parameter, dt_bias_parameter, time_step
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import split_heads
from jaxzoo.layers.low_rank import LowRank
from jaxzoo.mixers.linear.delta import DeltaConfig, DeltaMixer
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class KimiDeltaAttentionConfig(DeltaConfig):
    """Config of `KimiDeltaAttention`."""

    lower_bound: float | None = None
    """Smallest log decay, below 0, such as -5, for decays by a sigmoid; None: decays by a softplus."""
    gate_bias: bool = True
    """Bias b of the gate (fla); transformers' Kimi Linear has none."""
    rank: PositiveInt | None = None
    """Rank of the maps to decay and gate; None: the value width of a head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("lower_bound", self.lower_bound is None or self.lower_bound < 0, "must be below 0, or None")

    @property
    def decays(self) -> int:
        """Number of decays of all value heads."""
        return self.heads * self.head_key

    @property
    def ranks(self) -> int:
        """`rank`, with the default filled in."""
        return self.rank or self.head_value

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, n_value_heads=4, key_width=8, value_width=16, n_taps=3, rank=3)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of `delta_flops` and of the low-rank projections of gate and decay."""
        return self.delta_flops(length) + 2.0 * self.ranks * (2 * self.width + self.decays + self.values)


class KimiDeltaAttention(DeltaMixer):
    """The delta rule with a decay per token and channel; `step` costs O(k v) per head.

    Parameters of `DeltaMixer`, `decay.down` (d, rank), `decay.up` (rank, heads k), `a_log` (heads,), `dt_bias`
    (heads k,), `gate.down` (d, rank), `gate.up` (rank, value_width) with bias, `norm.scale` (v,).
    """

    config: KimiDeltaAttentionConfig

    def __init__(self, config: KimiDeltaAttentionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        d, rank, std = config.width, config.ranks, config.std
        self.decay: LowRank = LowRank(d, rank, config.decays, std=std, rngs=rngs)
        high = 16.0 if config.lower_bound is None else 1.0
        self.a_log: nnx.Param[jax.Array] = a_log_parameter(config.heads, low=1.0, high=high, rngs=rngs)
        self.dt_bias: nnx.Param[jax.Array] = dt_bias_parameter(config.decays, rngs=rngs)
        self.gate: LowRank = LowRank(d, rank, config.values, std=std, bias=config.gate_bias, rngs=rngs)
        self.norm: GatedNorm = GatedNorm(config.head_value, eps=config.norm_eps, activation="sigmoid")

    def _decay(self, x: Float[Array, "... d"]) -> Float[Array, "... h k"]:
        config, logits = self.config, self.decay(x).astype(jnp.float32)
        rate = jnp.exp(self.a_log[...]).reshape((1,) * (x.ndim - 1) + (-1, 1))
        if config.lower_bound is None:
            return -rate * split_heads(time_step(logits, self.dt_bias[...]), config.heads)
        logits = logits + self.dt_bias[...].reshape((1,) * (x.ndim - 1) + (-1,))
        return config.lower_bound * jax.nn.sigmoid(rate * split_heads(logits, config.heads))

    def _gate(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        return self.gate(x)
