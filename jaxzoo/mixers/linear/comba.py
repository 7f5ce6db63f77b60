"""Comba (Hu et al. 2025, arXiv 2506.02475): the delta rule with a feedback vector of its own and corrected queries.

With q, k, v after short convolutions and SiLU, beta and the decay a as in Gated DeltaNet, for every head:

    p_t = sigmoid(b) k_t        q_t <- q_t - D p_t        q', k', p' = q / |q|, k / |k|, p / |p|
    S_t = a_t S_{t-1} + beta_t k'_t (v_t - S_{t-1}^T p'_t)^T        o_t = S_t^T q'_t / sqrt(k)
    y = concat(rms(o_h) . sigmoid(x W_G)) W_O

with one number b and one D per head. The removal reads the state before its decay: S (a - beta k p^T), the paper's
scalar plus low rank, and what fla's `naive_chunk_comba` and kernels compute; its `naive_recurrent_comba` reads the
decayed state.

The layer is fla's. Its kernels divide p by its length, which cancels sigmoid(b) except in q;
`normalized_feedback=False` keeps p = sigmoid(b) k / |k| in the removal. With more heads of values than of keys we
repeat p as q and k; fla does not, and reads other heads' p there.

fla's names: `a_proj` is `decay_proj`, `b_proj` is `beta_proj`, `decay` is `inner_decay`, `D` is `correction`, `g_proj`
is `gate_proj`, `o_norm.weight` is `norm.scale`, `o_proj` is `out_proj`; `q_conv1d`, `k_conv1d`, `v_conv1d` are joined
in `conv.taps`. Initialisation as in Gated DeltaNet; b = 1; D = `correction_init`: fla recommends 0.02 for small models.

State: S, k v numbers per head of values, and the last n_taps - 1 projected q, k and v.

Good at: As Gated DeltaNet: it overwrites single keys; reads are corrected by what the token itself has written.
Paper: Hu et al. 2025, https://arxiv.org/abs/2506.02475
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.linear.delta import GatedDeltaConfig, GatedDeltaMixer
from jaxzoo.ops.delta_rule import Removal
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class CombaConfig(GatedDeltaConfig):
    """Config of `Comba`."""

    general = True

    inner: bool = True
    """p = sigmoid(b) k; False: p = k (fla: `use_inner_decay`)."""
    correct: bool = True
    """Subtracts D p from the queries (fla: `use_output_correction`)."""
    correction_init: float = 1.0
    """Initial D of every head (fla: `correction_factor`)."""
    normalized_feedback: bool = True
    """Divides p by its length, as fla does; False: by that of k."""

    @classmethod
    def tiny(cls) -> Self:
        return cls(
            d_model=7, n_heads=2, n_value_heads=4, key_width=6, value_width=12, n_taps=3, normalized_feedback=False
        )


class Comba(GatedDeltaMixer):
    """The delta rule with feedback; `step` costs O(k v) per head.

    Parameters of `GatedDeltaMixer`, `inner_decay` and `correction` (n_heads,).
    """

    config: CombaConfig

    def __init__(self, config: CombaConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, activation="sigmoid", rngs=rngs)
        if config.inner:
            self.inner_decay: nnx.Param[jax.Array] = parameter(jnp.ones((config.n_heads,)), ("heads",))
        if config.correct:
            start = jnp.full((config.n_heads,), config.correction_init)
            self.correction: nnx.Param[jax.Array] = parameter(start, ("heads",), decay=False)

    def _recurrence(
        self,
        x: Float[Array, "*b d"],
        q: Float[Array, "*b g k"],
        k: Float[Array, "*b g k"],
        v: Float[Array, "*b h v"],
        s: Float[Array, "b h k v"] | None,
        ids: Int[Array, "b t"] | None,
    ) -> tuple[Float[Array, "*b h v"], Float[Array, "b h k v"]]:
        inner = jax.nn.sigmoid(self.inner_decay[...]) if self.config.inner else jnp.ones((self.config.n_heads,))
        inner = along_last(inner[:, None], k)
        if self.config.correct:
            q = q - along_last(self.correction[...][:, None], q) * inner * k
        p = self._normalized(inner * k) if self.config.normalized_feedback else inner * self._normalized(k)
        q, k, p = (self._for_values(y) for y in (self._normalized(q), self._normalized(k), p))
        write = self._beta(x)[..., None].astype(k.dtype) * k
        return self._rule(s, q, write, v, ids, removal=Removal(p, -write), log_decay=self._decay(x))
