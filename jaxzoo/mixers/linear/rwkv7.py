"""Time mixing of RWKV-7, called Goose (Peng et al. 2025, arXiv 2503.14456): a generalized delta rule.

With the previous token x' and low-rank maps lora_j(x) = f_j(x A_j) B_j + bias_j, for each head (sec. 4):

    shift_j(x) = x + (x' - x) . mu_j                         one mu each for r, w, k, v, a and g
    r, k, v = shift_r(x) W_r, shift_k(x) W_k, shift_v(x) W_v
    v <- v + (v_first - v) . sigmoid(lora_v(shift_v(x)))     f_v = identity; not in the first layer
    log w = -exp(-1/2) sigmoid(lora_w(shift_w(x)))           f_w = tanh
    a = sigmoid(lora_a(shift_a(x)))                          f_a = identity
    g = sigmoid(shift_g(x) A_g) B_g
    kappa = (k . k_k) / |k . k_k|                            k' = k . (1 + (a - 1) . k_a)
    S_t = Diag(w_t) S_{t-1} - (a_t . kappa_t) (kappa_t^T S_{t-1}) + k'_t v_t^T          o_t = S_t^T r_t
    y_t = (g_t . (norm(o_t) + (sum_k r_t r_k k'_t) v_t)) W_o

The paper's state is the transpose. The norm is a group norm, over the channels of each head, with a learned scale and
shift per channel. The channel mix is `RWKV7ChannelMix`.

v_first are the values of the first RWKV-7 layer (value residual, sec. 4). They are read from `Context.first_values`,
which a model sets; callers without a model compute them with the `values` method of the first layer.

| ours                                       | authors' code                                                   |
| ------------------------------------------ | --------------------------------------------------------------- |
| `shifts`                                   | `x_r`, `x_w`, `x_k`, `x_v`, `x_a`, `x_g`, in this order         |
| `decay`, `rate`, `gate`: `down`, `up`      | `w1`, `w2`; `a1`, `a2`; `g1`, `g2`; biases `w0`, `a0`           |
| `value_share`: `down`, `up`                | `v1`, `v2`; bias `v0`                                           |
| `removal_scale`, `rate_share`, `bonus`     | `k_k`, `k_a`, `r_k`                                             |
| `norm_scale`, `norm_bias`                  | `ln_x.weight`, `ln_x.bias`                                      |

Initialisation, as in the authors' code, for layer l of L and channel i of d; see `_initial`.

In fla the projections are `r_proj`, `k_proj`, `v_proj` and `o_proj`, the maps `w_lora` and so on (0 is `down`, 2 is
`up`), and the norm's eps is 1e-5 k, which is our `norm_eps` at k = 64.

Deviations: projections start normal; with `projections="release"`, orthogonal (keys times 0.1, W_o 0). All parameters
have the same learning rate. |k . k_k| is sqrt(sum of squares + 1e-12).

Good at: State tracking and recall: it removes along one key and writes along another, at a rate per channel.
Paper: Peng et al. 2025 (Goose), https://arxiv.org/abs/2503.14456
"""

import dataclasses
import functools
import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.config.checked import NonNegativeFloat, PositiveInt
from jaxzoo.layers.linear import split_heads
from jaxzoo.layers.low_rank import Activation, LowRank
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context, MixerConfig
from jaxzoo.mixers.linear.rwkv import RWKVConfig, RWKVHeads, RWKVHeadsState, Sums, projection
from jaxzoo.ops.delta_rule import CHUNK, Removal, delta_rule, delta_rule_step
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKV7TimeMixConfig(RWKVConfig):
    """Config of `RWKV7TimeMix`."""

    size_fields = ("n_heads",)

    n_heads: PositiveInt = 1
    """Heads; the paper's have 64 channels each."""
    decay_rank: PositiveInt = 64
    """Rank of the map to the decays w."""
    rate_rank: PositiveInt = 64
    """Rank of the map to the removal rates a."""
    gate_rank: PositiveInt = 128
    """Rank of the map to the gate g."""
    value_rank: PositiveInt = 32
    """Rank of the map to the weight of the first layer's values."""
    value_residual: bool | None = None
    """Mixes in the values of the first layer; None: if `layer_index` is above 0, as in the paper."""
    norm_eps: NonNegativeFloat = 64e-5
    """Added to the mean square in the norm of each head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_divisible("d_model", by="n_heads")

    @property
    def head_width(self) -> int:
        """Channels of a head."""
        return self.width // self.n_heads

    head_key = head_width

    @property
    def mixes_values(self) -> bool:
        """`value_residual`, with the default filled in."""
        return self.layer_index > 0 if self.value_residual is None else self.value_residual

    @property
    def capabilities(self) -> Capabilities:
        mixes = self.mixes_values
        return dataclasses.replace(self.promises, makes_values=not mixes, needs_values=mixes)

    @property
    def scanned_as(self) -> MixerConfig:
        return dataclasses.replace(self, layer_index=0, n_layers=1, value_residual=self.mixes_values)

    @classmethod
    def tiny(cls) -> Self:
        ranks = cls(decay_rank=2, rate_rank=3, gate_rank=4, value_rank=2)
        return dataclasses.replace(ranks, d_model=9, n_heads=3, layer_index=1, n_layers=3)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections and low-rank maps, five products of a chunk with keys or values, the solve, and two
        reads and two updates of the state."""
        d = self.width
        low_rank = 4.0 * d * (self.decay_rank + self.rate_rank + self.gate_rank + self.value_rank * self.mixes_values)
        return 8.0 * d * d + low_rank + 2.0 * min(CHUNK, length) * 8 * d + 8.0 * self.head_width * d


class RWKV7TimeMix(RWKVHeads):
    """Time mixing of RWKV-7; the state has a fixed size, and `step` costs O(d^2 / n_heads) besides the projections.

    `shifts` (6, d), `receptance`, `key`, `value`, `output` (d, d), `decay`, `rate`, `gate` and, with a value residual,
    `value_share`: `down` (d, rank) and `up` (rank, d), with biases except for the gate; `removal_scale`, `rate_share`,
    `norm_scale`, `norm_bias` (d,), `bonus` (h, k).
    """

    config: RWKV7TimeMixConfig

    def __init__(self, config: RWKV7TimeMixConfig, *, rngs: nnx.Rngs) -> None:
        d, axes, heads = config.width, ("embed", "heads"), (config.n_heads, config.head_width)
        place, zigzag, decays, shares = _initial(config)
        self.shifts: nnx.Param[jax.Array] = parameter(jnp.asarray(shares, jnp.float32), (None, "embed"), decay=False)
        self.decay: LowRank = _low_rank(d, config.decay_rank, decays + 0.5 + 2.5 * zigzag, activation="tanh", rngs=rngs)
        self.rate: LowRank = _low_rank(d, config.rate_rank, -0.19 + 0.3 * zigzag + 0.4 * place, rngs=rngs)
        self.gate: LowRank = _low_rank(d, config.gate_rank, None, activation="sigmoid", rngs=rngs)
        if config.mixes_values:
            self.value_share: LowRank = _low_rank(d, config.value_rank, 0.73 - 0.4 * place, rngs=rngs)
        removal = jnp.asarray(0.71 - 0.1 * place, jnp.float32)
        self.removal_scale: nnx.Param[jax.Array] = parameter(removal, ("heads",), decay=False)
        self.rate_share: nnx.Param[jax.Array] = parameter(jnp.full((d,), 1.02), ("heads",), decay=False)
        self.bonus: nnx.Param[jax.Array] = parameter(jnp.full(heads, -0.04), ("heads", None), decay=False)
        self._make_norm(config, d)
        inward = {"axes": axes, "std": config.std, "rngs": rngs}
        self.receptance: nnx.Linear = projection(config, d, d, **inward)
        self.key: nnx.Linear = projection(config, d, d, gain=0.1, **inward)
        self.value: nnx.Linear = projection(config, d, d, **inward)
        self.output: nnx.Linear = projection(config, d, d, axes=axes[::-1], std=config.out_std, gain=0.0, rngs=rngs)
        self.config = config

    def values(
        self, x: Float[Array, "*b d"], state: RWKVHeadsState | None = None, context: Context = NO_CONTEXT
    ) -> Float[Array, "*b d"]:
        return self.value(self._shift(x, self._shifted(x, state, context))[3])

    def _mix(self, x: Float[Array, "*b d"], shifted: Array, sums: Sums, context: Context) -> tuple[Array, Sums]:
        split = functools.partial(split_heads, n_heads=self.config.n_heads)
        r, w, k, v, a, g = self._shift(x, shifted)
        values = self.value(v)
        if self.config.mixes_values:
            assert context.first_values is not None
            share = jax.nn.sigmoid(self.value_share(v))
            values = values + (context.first_values - values) * share
        log_decay = -math.exp(-0.5) * jax.nn.sigmoid(self.decay(w).astype(jnp.float32))
        k, a = self.key(k), jax.nn.sigmoid(self.rate(a))
        kappa = split(k * along_last(self.removal_scale[...], k)).astype(jnp.float32)
        kappa = kappa * jax.lax.rsqrt(jnp.square(kappa).sum(-1, keepdims=True) + np.float32(1e-12))
        k = k * (1 + (a - 1) * along_last(self.rate_share[...], k))
        removal = Removal(kappa, -split(a).astype(jnp.float32) * kappa)
        options: dict[str, Any] = {"removal": removal, "log_decay": split(log_decay)}
        q, k, v, gate = split(self.receptance(r)), split(k), split(values), self.gate(g)
        if x.ndim == 2:
            o, s = delta_rule_step(sums[0], q, k, v, **options)
        else:
            past: dict[str, Any] = {"segment_ids": context.segment_ids, "initial_state": sums[0] if sums else None}
            o, s = delta_rule(q, k, v, **options, **past)
        own = (q * k * along_last(self.bonus[...], q)).sum(-1, keepdims=True) * v
        return self.output((self._normed(o) + own.reshape(gate.shape)) * gate), (s,)

    def _shift(self, x: Float[Array, "... d"], shifted: Float[Array, "... d"]) -> list[Array]:
        """Mixtures of the token and the previous token, for r, w, k, v, a and g."""
        return [x + (shifted - x) * along_last(mu, x) for mu in self.shifts[...]]


def _low_rank(
    d: int, rank: int, bias: np.ndarray | None, *, activation: Activation = "none", rngs: nnx.Rngs
) -> LowRank:
    """Low-rank map with initial output equal to its bias: `down` is 0, `up` orthogonal times 0.1."""
    layer = LowRank(d, rank, d, std=0.0, bias=bias is not None, activation=activation, rngs=rngs)
    layer.up.kernel[...] = nnx.initializers.orthogonal(0.1)(rngs.params(), (rank, d))
    if bias is not None and layer.up.bias is not None:
        layer.up.bias[...] = jnp.asarray(bias, jnp.float32)
    return layer


def _initial(config: RWKV7TimeMixConfig) -> tuple[np.ndarray, ...]:
    """By channel i of d: its place i / (d - 1) - 1/2; z |z| with z its place in the head from -1 to 1; the base of its
    decay -6 + 6 (i / (d - 1))^(1 + D^0.3) with D = l / (L - 1); and the six shares of the token before,
    1 - (i / d)^(c (1 - l / L)) with c = 0.2, 0.9, 0.7, 0.7, 0.9, 0.2."""
    i, half = np.arange(config.width), max((config.head_width - 1) / 2, 0.5)
    place = i / max(config.width - 1, 1)
    zigzag = (i % config.head_width - (config.head_width - 1) / 2) / half
    decays = -6 + 6 * place ** (1 + config.depth**0.3)
    exponents = np.array([0.2, 0.9, 0.7, 0.7, 0.9, 0.2])[:, None] * (1 - config.layer_index / config.n_layers)
    return place - 0.5, zigzag * np.abs(zigzag), decays, 1 - (i / config.width)[None] ** exponents
