"""Time mixing of RWKV-5, called Eagle (Peng et al. 2024): RWKV-4 with matrix states in heads, and a gate.

With the token shift `shift(x)_t = mu . x_t + (1 - mu) . x_{t-1}`, and a separate mu for r, k, v and g, for each head:

    r, k, v, g = shift_r(x) W_r, shift_k(x) W_k, shift_v(x) W_v, shift_g(x) W_g
    a = exp(-exp(time_decay))        u = time_first
    o_t = r_t^T (S_{t-1} + Diag(u) k_t v_t^T)        S_t = Diag(a) S_{t-1} + k_t v_t^T
    y_t = (silu(g_t) . norm(o_t)) W_o

The norm is a group norm, over the channels of each head, with a learned scale and shift per channel. Its eps is 64e-5;
the authors' code divides o by 8 and adds 1e-5, which is equivalent. The state is the last input and S; Based, App. E.2,
has no formula for its size. The channel mix of RWKV-5 is `RWKV4ChannelMix` with a `hidden_width` of 3.5 d.

Parameters: those of `RWKV4TimeMix`, and `time_mix_gate`, `gate` (W_g), `norm_scale`, `norm_bias`. In the authors' code
`time_first` is time_faaaa, `norm_scale` and `norm_bias` are ln_x.

Initialisation, as in the authors' code, for layer l of L, channel i of d, and D = l / (L - 1): mu_k = (i/d)^{1 - l/L},
mu_v = mu_k + 0.3 D, mu_r = mu_g = sqrt(mu_k); time_decay = -6 + 5 (i / (d - 1))^{0.7 + 1.3 D}; time_first =
D (1 - i / (d - 1)) + z_i / 10 with z = 0, 1, -1, 0, 1, ..; norm_scale = ((1 + l) / L)^0.7. `layer_index` and `n_layers`
say l and L; the default is the only layer.

Deviations: projections start normal; with `projections="release"`, W_o starts at 0 and the others orthogonal. All
parameters have the same learning rate.

Good at: RWKV with matrix states in heads, which recall more.
Paper: Peng et al. 2024, https://arxiv.org/abs/2404.05892
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.config.checked import NonNegativeFloat, PositiveInt
from jaxzoo.layers.linear import split_heads
from jaxzoo.layers.token_shift import mix
from jaxzoo.mixers.linear.rwkv import RWKVBonusHeads, RWKVConfig, projection, share
from jaxzoo.ops.linear_attention import CHUNK
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKV5TimeMixConfig(RWKVConfig):
    """Config of `RWKV5TimeMix`."""

    n_heads: PositiveInt = 1
    """Heads; the paper's have 64 channels each."""
    value_width: PositiveInt | None = None
    """Total channels of r, k, v and g in all heads; None: d_model, as in the paper."""
    norm_eps: NonNegativeFloat = 64e-5
    """Added to the mean square in the norm of each head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_divisible("value_width" if self.value_width else "d_model", by="n_heads")

    @property
    def values(self) -> int:
        """`value_width`, with the default filled in."""
        return self.value_width or self.width

    @property
    def head_width(self) -> int:
        """Channels of a head."""
        return self.values // self.n_heads

    head_key = head_width

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=3, value_width=15, layer_index=1, n_layers=3)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections, scores of a chunk with their values, state update and read, and the token itself."""
        width = self.values
        recurrence = 4.0 * min(CHUNK, length) * width + 4.0 * self.head_width * width + 6.0 * width
        return 10.0 * self.width * width + recurrence


class RWKV5TimeMix(RWKVBonusHeads):
    """Time mixing of RWKV-5; the state has a fixed size, and `step` costs O(value_width^2 / n_heads).

    `time_mix_key`, `time_mix_value`, `time_mix_receptance`, `time_mix_gate` (d,), `time_decay`, `time_first` (h, k),
    `norm_scale`, `norm_bias` (value_width,); `key`, `value`, `receptance`, `gate` (d, value_width), `output`
    (value_width, d): head-major columns.
    """

    config: RWKV5TimeMixConfig

    def __init__(self, config: RWKV5TimeMixConfig, *, rngs: nnx.Rngs) -> None:
        d, width, axes = config.width, config.values, ("embed", "heads")
        self.time_mix_key: nnx.Param[jax.Array] = share(config)
        self.time_mix_value: nnx.Param[jax.Array] = share(config, more=0.3 * config.depth)
        self.time_mix_receptance: nnx.Param[jax.Array] = share(config, 0.5)
        self.time_mix_gate: nnx.Param[jax.Array] = share(config, 0.5)
        self._make_recurrence(config, width, width)
        inward = {"axes": axes, "std": config.std, "rngs": rngs}
        self.key: nnx.Linear = projection(config, d, width, **inward)
        self.value: nnx.Linear = projection(config, d, width, **inward)
        self.receptance: nnx.Linear = projection(config, d, width, **inward)
        self.gate: nnx.Linear = projection(config, d, width, **inward)
        self.output: nnx.Linear = projection(config, width, d, axes=axes[::-1], std=config.out_std, gain=0.0, rngs=rngs)
        self.config = config

    def _project(self, x: Float[Array, "... d"], shifted: Float[Array, "... d"]) -> tuple[jax.Array, ...]:
        """Receptance, keys and values `(..., h, k)`, the gate `(..., value_width)`, and log decays `(h, k)`."""
        r = self.receptance(mix(x, shifted, self.time_mix_receptance[...]))
        k = self.key(mix(x, shifted, self.time_mix_key[...]))
        v = self.value(mix(x, shifted, self.time_mix_value[...]))
        gate = jax.nn.silu(self.gate(mix(x, shifted, self.time_mix_gate[...])))
        r, k, v = (split_heads(y, self.config.n_heads) for y in (r, k, v))
        return r, k, v, gate, -jnp.exp(self.time_decay[...])
