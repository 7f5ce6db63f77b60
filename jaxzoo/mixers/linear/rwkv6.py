"""Time mixing of RWKV-6, called Finch (Peng et al. 2024): token shift and decay depend on the token.

With the previous token x' and low-rank maps (sec. 4.2), and separate lambda, A and B for w, k, v, r and g:

    z = x + (x' - x) . mu_x        shift_j(x) = x + (x' - x) . (lambda_j + tanh(z A_j) B_j)
    r, k, v, g = shift_r(x) W_r, shift_k(x) W_k, shift_v(x) W_v, shift_g(x) W_g
    a_t = exp(-exp(time_decay + tanh(shift_w(x) W_1) W_2))        u = time_first
    o_t = r_t^T (S_{t-1} + Diag(u) k_t v_t^T)        S_t = Diag(a_t) S_{t-1} + k_t v_t^T
    y_t = (silu(g_t) . norm(o_t)) W_o

The norm is RWKV-5's. The channel mix of RWKV-6 is `RWKV4ChannelMix` with a `hidden_width` of 3.5 d and `share_power=3`;
its weight of a token is 1 minus the authors' time_maa.

| ours                                  | authors' code                                                             |
| ------------------------------------- | ------------------------------------------------------------------------- |
| `shift_mean`, `shifts`                | `time_maa_x`; `time_maa_w`, `_k`, `_v`, `_r`, `_g`, in this order         |
| `shift_down`, `shift_up`              | `time_maa_w1` (d, 5 rank), `time_maa_w2` (5, rank, d)                     |
| `time_decay`, `decay_down`, `decay_up` | `time_decay`, `time_decay_w1`, `time_decay_w2`                           |
| `time_first`, `norm_scale`, `norm_bias` | `time_faaaa`, `ln_x.weight`, `ln_x.bias`                                |

Initialisation, as in the authors' code, for layer l of L, channel i of d, and D = l / (L - 1): weights of the previous
token are 1 - (i/d)^{1 - l/L}, minus 0.3 D for v, with half the exponent for r and g; `shift_down` and `decay_down` are
0, `shift_up` and `decay_up` uniform in +-0.01; the rest as in RWKV-5.

fla's layer has its parameters in another order (r, w, k, v, g; `x_proj`, `x_bias`, `bonus`, `g_norm`, `o_proj`), keys
of half the width and an eps of 1e-5.

Deviations: projections start normal; with `projections="release"`, orthogonal (keys and gate times 0.1, output 0). All
parameters have the same learning rate.

Good at: Text without positions: token shift and decay both depend on the token.
Paper: Peng et al. 2024 (Finch), https://arxiv.org/abs/2404.05892
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.config.checked import NonNegativeFloat, PositiveInt
from jaxzoo.layers.linear import split_heads
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.linear.rwkv import RWKVBonusHeads, RWKVConfig, projection
from jaxzoo.ops.linear_attention import CHUNK
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKV6TimeMixConfig(RWKVConfig):
    """Config of `RWKV6TimeMix`."""

    n_heads: PositiveInt = 1
    """Heads; the paper's have 64 channels each."""
    value_width: PositiveInt | None = None
    """Total channels of v and g in all heads; None: d_model, as in the paper."""
    key_width: PositiveInt | None = None
    """Total channels of r, k and decays in all heads; None: value_width, as in the paper (fla: d_model / 2)."""
    shift_rank: PositiveInt = 32
    """Rank of the maps to the weights of the token shift."""
    decay_rank: PositiveInt = 64
    """Rank of the map to the decays."""
    norm_eps: NonNegativeFloat = 64e-5
    """Added to the mean square in the norm of each head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model is not None:
            rule = f"gives {self.values} channels, which must be a multiple of n_heads={self.n_heads}"
            self.require("value_width", self.values % self.n_heads == 0, rule)
            rule = f"gives {self.keys} channels, which must be a multiple of n_heads={self.n_heads}"
            self.require("key_width", self.keys % self.n_heads == 0, rule)

    @property
    def values(self) -> int:
        """`value_width`, with the default filled in."""
        return self.value_width or self.width

    @property
    def keys(self) -> int:
        """`key_width`, with the default filled in."""
        return self.key_width or self.values

    @property
    def head_key(self) -> int:
        """Key width of a head."""
        return self.keys // self.n_heads

    @property
    def head_width(self) -> int:
        """Value width of a head."""
        return self.values // self.n_heads

    @classmethod
    def tiny(cls) -> Self:
        place = cls(layer_index=1, n_layers=3)
        return dataclasses.replace(place, d_model=7, n_heads=3, value_width=15, key_width=6, shift_rank=2, decay_rank=3)

    def flops_per_token(self, length: int) -> float:
        """Projections and low-rank maps, scores of a chunk with their values, state update and read."""
        d, values, keys = self.width, self.values, self.keys
        low_rank = 20.0 * d * self.shift_rank + 2.0 * self.decay_rank * (d + keys)
        recurrence = (
            2.0 * min(CHUNK, length) * (keys + values) + 4.0 * self.head_key * values + 2.0 * (keys + 2 * values)
        )
        return d * (4.0 * keys + 6.0 * values) + low_rank + recurrence


class RWKV6TimeMix(RWKVBonusHeads):
    """Time mixing of RWKV-6; the state has a fixed size, and `step` costs O(key_width value_width / n_heads).

    `shift_mean` (d,), `shifts` (5, d), `shift_down` (d, 5 shift_rank), `shift_up` (5, shift_rank, d), `time_decay`,
    `time_first` (h, k), `decay_down` (d, decay_rank), `decay_up` (decay_rank, key_width), `norm_scale`, `norm_bias`
    (value_width,); `key`, `receptance` (d, key_width), `value`, `gate` (d, value_width), `output` (value_width, d).
    """

    config: RWKV6TimeMixConfig

    def __init__(self, config: RWKV6TimeMixConfig, *, rngs: nnx.Rngs) -> None:
        d, width, keys, axes = config.width, config.values, config.keys, ("embed", "heads")
        small = config.shift_rank
        exponents = np.array([1.0, 1.0, 1.0, 0.5, 0.5])[:, None] * (1 - config.layer_index / config.n_layers)
        shares = 1 - (np.arange(d) / d)[None] ** exponents
        shares[2] -= 0.3 * config.depth
        self.shift_mean: nnx.Param[jax.Array] = parameter(jnp.asarray(shares[0], jnp.float32), ("embed",), decay=False)
        self.shifts: nnx.Param[jax.Array] = parameter(jnp.asarray(shares, jnp.float32), (None, "embed"), decay=False)
        self.shift_down: nnx.Param[jax.Array] = parameter(jnp.zeros((d, 5 * small)), ("embed", None))
        self.shift_up: nnx.Param[jax.Array] = parameter(_nearly_zero((5, small, d), rngs), (None, None, "embed"))
        self.decay_down: nnx.Param[jax.Array] = parameter(jnp.zeros((d, config.decay_rank)), ("embed", None))
        self.decay_up: nnx.Param[jax.Array] = parameter(_nearly_zero((config.decay_rank, keys), rngs), (None, "heads"))
        self._make_recurrence(config, keys, width)
        inward = {"axes": axes, "std": config.std, "rngs": rngs}
        self.key: nnx.Linear = projection(config, d, keys, gain=0.1, **inward)
        self.value: nnx.Linear = projection(config, d, width, gain=1.0, **inward)
        self.receptance: nnx.Linear = projection(config, d, keys, gain=1.0, **inward)
        self.gate: nnx.Linear = projection(config, d, width, gain=0.1, **inward)
        self.output: nnx.Linear = projection(config, width, d, axes=axes[::-1], std=config.out_std, gain=0.0, rngs=rngs)
        self.config = config

    def _project(self, x: Float[Array, "... d"], shifted: Float[Array, "... d"]) -> tuple[Array, ...]:
        """Receptance, keys, values, gate `(..., value_width)` and float32 log decays; all others `(..., h, k)`."""
        # Five mixtures of the token and the previous token.
        to_last = shifted - x
        z = x + to_last * along_last(self.shift_mean[...], x)
        hidden = jnp.split(jnp.tanh(z @ self.shift_down[...].astype(x.dtype)), 5, axis=-1)
        ups, means = self.shift_up[...].astype(x.dtype), self.shifts[...]
        w, k, v, r, g = (x + to_last * (along_last(means[j], x) + hidden[j] @ ups[j]) for j in range(5))
        low = jnp.tanh(w @ self.decay_down[...].astype(x.dtype)) @ self.decay_up[...].astype(x.dtype)
        projected = self.receptance(r), self.key(k), self.value(v), low
        r, k, v, low = (split_heads(y, self.config.n_heads) for y in projected)
        low = low.astype(jnp.float32)
        log_decay = -jnp.exp(along_last(self.time_decay[...], low) + low)
        return r, k, v, jax.nn.silu(self.gate(g)), log_decay


def _nearly_zero(shape: tuple[int, ...], rngs: nnx.Rngs) -> Array:
    return jax.random.uniform(rngs.params(), shape, jnp.float32, -0.01, 0.01)
