"""Time mixing of RWKV-4 (Peng et al. 2023): a mean of values, weighted by keys and distances.

With the token shift `shift(x)_t = mu . x_t + (1 - mu) . x_{t-1}`, and a separate mu for r, k and v:

    r, k, v = shift_r(x) W_r, shift_k(x) W_k, shift_v(x) W_v        w = exp(time_decay)        u = time_first
    wkv_t = (sum_{i<t} e^{-(t-1-i) w + k_i} v_i + e^{u + k_t} v_t) / (the same sums without v)
    y_t = (sigmoid(r_t) . wkv_t) W_o

The state is the last input and the two sums with their scale; Based, App. E.2, has no formula for its size.

Parameters have the names of Hugging Face's RwkvModel: `time_mix_key` (mu_k), `time_mix_value`, `time_mix_receptance`,
`time_decay`, `time_first`, `key` (W_k), `value`, `receptance`, `output` (W_o).

Initialisation, as in the authors' code, for layer l of L, channel i of d, and D = l / (L - 1): mu_k = (i/d)^{1 - l/L},
mu_v = mu_k + 0.3 D, mu_r = sqrt(mu_k); time_decay = -5 + 8 (i / (d - 1))^{0.7 + 1.3 D}; time_first = log 0.3 + z_i / 2
with z = 0, 1, -1, 0, 1, .. (Hugging Face's code sets time_first to 1). `layer_index` and `n_layers` say l and L; the
default is the first layer. The published model needs a pattern with one config per layer.

Deviations: projections start normal; with `projections="release"`, W_k, W_r and W_o start at 0 and W_v orthogonal. All
parameters have the same learning rate (in the authors' code it is higher for time_decay and time_first).

Good at: Text at the smallest state: two numbers per channel.
Paper: Peng et al. 2023, https://arxiv.org/abs/2305.13048
"""

import dataclasses
import math
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.token_shift import mix
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import Context
from jaxzoo.mixers.linear.rwkv import RWKVConfig, RWKVMixer, Sums, decay_curve, projection, share, zigzag
from jaxzoo.ops.wkv4 import Wkv4State, empty_state, wkv4, wkv4_step
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKV4TimeMixConfig(RWKVConfig):
    """Config of `RWKV4TimeMix`."""

    value_width: PositiveInt | None = None
    """Channels of r, k and v; None: d_model, as in the paper."""

    @property
    def values(self) -> int:
        """`value_width`, with the default filled in."""
        return self.value_width or self.width

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, value_width=9, layer_index=1, n_layers=3)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the projections, and six multiply-adds per channel for update and read of the sums."""
        return 8.0 * self.width * self.values + 12.0 * self.values


class RWKV4TimeMixState(NamedTuple):
    """Last input and sums over the past."""

    last: Float[Array, "b d"]
    """The last input, in the dtype given to `init_state`."""
    num: Float[Array, "b v"]
    """Sum of the weighted values, over e^max, float32."""
    den: Float[Array, "b v"]
    """Sum of the weights, over e^max, float32."""
    max: Float[Array, "b v"]
    """The largest exponent of a weight, float32."""


class RWKV4TimeMix(RWKVMixer):
    """Time mixing of RWKV-4; the state has a fixed size, and `step` costs the projections and O(1) per channel.

    `time_mix_key`, `time_mix_value`, `time_mix_receptance` (d,), `time_decay`, `time_first` (value_width,); `key`,
    `value`, `receptance` (d, value_width), `output` (value_width, d).
    """

    config: RWKV4TimeMixConfig
    state_class = RWKV4TimeMixState

    def __init__(self, config: RWKV4TimeMixConfig, *, rngs: nnx.Rngs) -> None:
        d, width, axes = config.width, config.values, ("embed", "channels")
        inward = {"axes": axes, "std": config.std, "rngs": rngs}
        self.time_mix_key: nnx.Param[jax.Array] = share(config)
        self.time_mix_value: nnx.Param[jax.Array] = share(config, more=0.3 * config.depth)
        self.time_mix_receptance: nnx.Param[jax.Array] = share(config, 0.5)
        decays = decay_curve(config, width, lowest=-5.0, span=8.0)
        self.time_decay: nnx.Param[jax.Array] = parameter(decays, ("channels",), decay=False)
        bonus = jnp.asarray(math.log(0.3) + 0.5 * zigzag(width), jnp.float32)
        self.time_first: nnx.Param[jax.Array] = parameter(bonus, ("channels",), decay=False)
        self.key: nnx.Linear = projection(config, d, width, gain=0.0, **inward)
        self.value: nnx.Linear = projection(config, d, width, **inward)
        self.receptance: nnx.Linear = projection(config, d, width, gain=0.0, **inward)
        self.output: nnx.Linear = projection(config, width, d, axes=axes[::-1], std=config.out_std, gain=0.0, rngs=rngs)
        self.config = config

    def _no_sums(self, batch_size: int) -> Sums:
        return empty_state(batch_size, self.config.values)

    def _mix(self, x: Float[Array, "*b d"], shifted: Array, sums: Sums, context: Context) -> tuple[Array, Sums]:
        r = jax.nn.sigmoid(self.receptance(mix(x, shifted, self.time_mix_receptance[...])))
        k = self.key(mix(x, shifted, self.time_mix_key[...]))
        v = self.value(mix(x, shifted, self.time_mix_value[...]))
        w, u = jnp.exp(self.time_decay[...]), self.time_first[...]
        before = Wkv4State(*sums) if sums else None
        if before is not None and x.ndim == 2:
            wkv, after = wkv4_step(before, k, v, w=w, u=u)
        else:
            wkv, after = wkv4(k, v, w=w, u=u, segment_ids=context.segment_ids, initial_state=before)
        return self.output(r * wkv), after
