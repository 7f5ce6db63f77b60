"""Gated DeltaProduct (Siems et al. 2025, arXiv 2502.10297): several delta-rule updates per token, after one decay.

With q', k', v and the decay a of Gated DeltaNet, and n keys, values and betas per token, for every head:

    S_t,0 = a_t S_{t-1}        S_t,j = S_t,j-1 + beta_t,j k'_t,j (v_t,j - k'_t,j^T S_t,j-1)^T,  j = 1 .. n
    o_t = S_t,n^T q'_t / sqrt(k)        y = concat(rms(o_h) . silu(x W_G)) W_O

with beta = 2 sigmoid(x W_beta), so that each token multiplies the state by a product of n generalized Householder
matrices with eigenvalues from -1 to 1. `forget=False` is DeltaProduct, without a decay.

fla's GatedDeltaProduct: `k_proj`, `v_proj` and `b_proj` (`beta_proj`) have columns (update, head, channel), as here;
`q_conv1d`, `k_conv1d`, `v_conv1d` are joined in `conv.taps`; `a_proj` is `decay_proj`, `g_proj` is `gate_proj`,
`o_norm.weight` is `norm.scale`, `o_proj` is `out_proj`. Its factor 1 / sqrt(k), and the length sqrt(sum of squares +
1e-6) of q and k, are taken over. The defaults of its model (one update, betas up to 1, no decay) are those of a
DeltaNet with an output gate. Initialisation as in Gated DeltaNet.

State: S, k v numbers per head of values, and the last n_taps - 1 projected q and n k and v.

The values of a token's updates enter its output with different weights: `capture` shows no scores.

Good at: State tracking: one token can permute what the state holds, which a single update cannot.
Paper: Siems et al. 2025, https://arxiv.org/abs/2502.10297
"""

import dataclasses
from typing import Any, Self

import jax.numpy as jnp

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.probe import recording
from jaxzoo.mixers.linear.delta import GatedDeltaConfig, GatedDeltaMixer
from jaxzoo.ops.delta_rule import delta_rule_step
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedDeltaProductConfig(GatedDeltaConfig):
    """Config of `GatedDeltaProduct`."""

    n_updates: PositiveInt = 2
    """Updates per token, n of the module docstring (fla: `num_householder`)."""
    negative: bool = True
    """Betas in (0, 2), as in the paper; False: in (0, 1)."""
    forget: bool = True
    """Has a decay (fla: `use_forget_gate`)."""

    @property
    def updates(self) -> int:
        return self.n_updates

    @property
    def decays(self) -> bool:
        return self.forget

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, n_value_heads=4, key_width=6, value_width=12, n_taps=3, n_updates=3)


class GatedDeltaProduct(GatedDeltaMixer):
    """Delta-rule updates in turn; `step` costs O(n k v) per head.

    Parameters of `GatedDeltaMixer`, with n times as many columns of `k_proj`, `v_proj`, `beta_proj` and channels of the
    convolution; without `forget` it leaves `decay_proj`, `a_log` and `dt_bias` out.
    """

    config: GatedDeltaProductConfig

    def _recurrence(
        self,
        x: Float[Array, "*b d"],
        q: Float[Array, "*b g k"],
        k: Float[Array, "*b ng k"],
        v: Float[Array, "*b nh v"],
        s: Float[Array, "b h k v"] | None,
        ids: Int[Array, "b t"] | None,
    ) -> tuple[Float[Array, "*b h v"], Float[Array, "b h k v"]]:
        n, lead = self.config.n_updates, x.shape[:-1]
        by_update = lambda y, *width: y.reshape(*lead, n, y.shape[len(lead)] // n, *width)  # noqa: E731
        q = self._for_values(self._normalized(q))
        k = self._for_values(self._normalized(by_update(k, k.shape[-1])))
        v, beta, decay = by_update(v, v.shape[-1]), by_update(self._beta(x)), self._decay(x)
        if s is not None and x.ndim == 2:
            o = v[:, 0]
            for j in range(n):
                options = {"beta": beta[:, j], "log_decay": None if j else decay}
                o, s = delta_rule_step(s, q * self.config.head_key**-0.5, k[:, j], v[:, j], **options)
            return o, s
        # Updates are tokens of a sequence n times as long: the first decays the state, the last reads it.
        rest = [(0, 0), (0, 0), (n - 1, 0), (0, 0), (0, 0)]
        q = jnp.pad(q[:, :, None], rest)
        if decay is not None:
            decay = jnp.pad(decay[:, :, None], [(0, 0), (0, 0), (0, n - 1), (0, 0)])
        in_turn: Any = lambda y: None if y is None else y.reshape(lead[0], -1, *y.shape[3:])  # noqa: E731
        ids = None if ids is None else jnp.repeat(ids, n, axis=1)
        q, k, v, beta, decay = (in_turn(y) for y in (q, k, v, beta, decay))
        with recording(None):
            o, s = self._rule(s, q, k, v, ids, beta=beta, log_decay=decay)
        return o[:, n - 1 :: n], s
