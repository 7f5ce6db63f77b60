"""Channel mixing of RWKV-4 (Peng et al. 2023), as a mixer: an MLP that also sees the previous token.

With the token shift `shift(x)_t = mu . x_t + (1 - mu) . x_{t-1}`, and a separate mu for r and k:

    y = sigmoid(shift_r(x) W_r) . (max(shift_k(x) W_k, 0)^2 W_v)

Its state is the last input, so it is a separate mixer in a model's pattern, with `mlp="none"`:
`pattern=(RWKV4TimeMixConfig(), RWKV4ChannelMixConfig()), n_layers=2 L` is RWKV-4 with L layers. RWKV-5 and RWKV-6 have
the same channel mix with a `hidden_width` of 3.5 d, RWKV-6 with `share_power=3` (its time_maa are 1 minus mu).

Parameters have the names of Hugging Face's RwkvModel: `time_mix_key` (mu_k), `time_mix_receptance`, `key` (W_k),
`receptance`, `value` (W_v).

Initialisation, as in the authors' code: both mu (i/d)^{(1 - l/L)^p} for layer l of L (`layer_index`, `n_layers`), with
p = 1, or 3 in RWKV-6 (`share_power`).

Deviation: projections start normal; with `projections="release"`, W_r and W_v start at 0 and W_k as an orthogonal
matrix times sqrt(hidden_width / d).

Good at: The MLP of RWKV, which also sees the previous token; used only with a time mix.
Paper: Peng et al. 2023, https://arxiv.org/abs/2305.13048
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.token_shift import mix
from jaxzoo.mixers.base import Context
from jaxzoo.mixers.linear.rwkv import RWKVConfig, RWKVMixer, Sums, projection, share
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKV4ChannelMixConfig(RWKVConfig):
    """Config of `RWKV4ChannelMix`."""

    hidden_width: PositiveInt | None = None
    """Hidden units; None: 4 d_model, as in the paper."""
    share_power: PositiveInt = 1
    """Power of 1 - l / L in the initial weights of the token itself: 1, or 3 (RWKV-6)."""

    @property
    def hidden(self) -> int:
        """`hidden_width`, with the default filled in."""
        return self.hidden_width or 4 * self.width

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, hidden_width=11, layer_index=1, n_layers=3)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the three projections."""
        return 4.0 * self.width * self.hidden + 2.0 * self.width**2


class RWKV4ChannelMix(RWKVMixer):
    """Channel mixing of RWKV-4; the state is one input.

    `time_mix_key`, `time_mix_receptance` (d,); `key` (d, hidden_width), `receptance` (d, d), `value` (hidden_width, d).
    """

    config: RWKV4ChannelMixConfig

    def __init__(self, config: RWKV4ChannelMixConfig, *, rngs: nnx.Rngs) -> None:
        d, hidden, axes = config.width, config.hidden, ("embed", "mlp")
        power = (1 - config.layer_index / config.n_layers) ** (config.share_power - 1)
        self.time_mix_key: nnx.Param[jax.Array] = share(config, power)
        self.time_mix_receptance: nnx.Param[jax.Array] = share(config, power)
        self.key: nnx.Linear = projection(config, d, hidden, axes=axes, std=config.std, rngs=rngs)
        self.receptance: nnx.Linear = projection(
            config, d, d, axes=("embed", None), std=config.std, gain=0.0, rngs=rngs
        )
        self.value: nnx.Linear = projection(config, hidden, d, axes=axes[::-1], std=config.out_std, gain=0.0, rngs=rngs)
        self.config = config

    def _mix(self, x: Float[Array, "*b d"], shifted: Array, sums: Sums, context: Context) -> tuple[Array, Sums]:
        hidden = jnp.square(jax.nn.relu(self.key(mix(x, shifted, self.time_mix_key[...]))))
        gate = jax.nn.sigmoid(self.receptance(mix(x, shifted, self.time_mix_receptance[...])))
        return gate * self.value(hidden), sums
