"""The time mixing of RWKV-5, called Eagle (Peng et al. 2024): RWKV-4 with matrix states in heads, and a gate.

With the token shift `shift(x)_t = mu . x_t + (1 - mu) . x_{t-1}`, one mu each for r, k, v and g, for every head:

    r, k, v, g = shift_r(x) W_r, shift_k(x) W_k, shift_v(x) W_v, shift_g(x) W_g
    a = exp(-exp(time_decay))        u = time_first
    o_t = r_t^T (S_{t-1} + Diag(u) k_t v_t^T)        S_t = Diag(a) S_{t-1} + k_t v_t^T
    y_t = (silu(g_t) . norm(o_t)) W_o

The norm is a group norm: over the channels of each head, with mean, a learned scale and a learned shift of every
channel. Its eps is 64e-5; the authors' code divides o by 8 and adds 1e-5, which is the same. The state is the last
input and S; Based, App. E.2, has no formula for its size. The channel mix of RWKV-5 is `RWKV4ChannelMix` with a
`hidden_width` of 3.5 d.

Parameters: as those of `RWKV4TimeMix`, and `time_mix_gate`, `gate` (W_g), `norm_scale`, `norm_bias`. `time_first` is
called time_faaaa in the authors' code, `norm_scale` and `norm_bias` are ln_x.

Initialisation, as in the authors' code, for layer l of L, channel i of d, and D = l / (L - 1): mu_k = (i/d)^{1 - l/L},
mu_v = mu_k + 0.3 D, mu_r = mu_g = sqrt(mu_k); time_decay = -6 + 5 (i / (d - 1))^{0.7 + 1.3 D}; time_first =
D (1 - i / (d - 1)) + z_i / 10 with z = 0, 1, -1, 0, 1, ..; norm_scale = ((1 + l) / L)^0.7. `layer_index` and `n_layers`
say l and L; the default is the only layer.

Deviations: projections start normal, unless `projections="release"`: then W_o starts at 0 and the others as orthogonal
matrices. All parameters have one learning rate.
"""

import dataclasses
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.array_typing import Array, Float
from jaxzoo.checked import NonNegativeFloat, PositiveInt
from jaxzoo.layers.head_norm import head_norm
from jaxzoo.layers.token_shift import empty_last, last_input, mix, token_shift
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import NO_CONTEXT, About, Context, Mixer
from jaxzoo.mixers.linear.rwkv import RWKVConfig, decay_curve, projection, share, zigzag
from jaxzoo.ops.bonus_linear_attention import bonus_linear_attention, bonus_linear_attention_step
from jaxzoo.ops.linear_attention import CHUNK


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKV5TimeMixConfig(RWKVConfig):
    """Config of `RWKV5TimeMix`."""

    about: ClassVar[About] = About(
        paper="Peng et al. 2024",
        url="https://arxiv.org/abs/2404.05892",
        good_at="RWKV with matrix states in heads, which recall more.",
    )

    n_heads: PositiveInt = 1
    """Heads; the paper's have 64 channels each."""
    value_width: PositiveInt | None = None
    """Channels of r, k, v and g in all heads together; None: d_model, as in the paper."""
    norm_eps: NonNegativeFloat = 64e-5
    """Added to the mean square in the norm of each head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_width:
            self.require_divisible("value_width", by="n_heads")
        elif self.d_model is not None:
            self.require_divisible("d_model", by="n_heads")

    @property
    def values(self) -> int:
        """`value_width`, with the default filled in."""
        return self.value_width or self.width

    @property
    def head_width(self) -> int:
        """Channels of a head."""
        return self.values // self.n_heads

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=3, value_width=15, layer_index=1, n_layers=3)

    def build(self, *, rngs: nnx.Rngs) -> "RWKV5TimeMix":
        return RWKV5TimeMix(self, rngs=rngs)

    def flops_per_token(self, length: int) -> float:
        """Projections, scores of a chunk with their values, writing and reading the state, and the token itself."""
        width = self.values
        recurrence = 4.0 * min(CHUNK, length) * width + 4.0 * self.head_width * width + 6.0 * width
        return 10.0 * self.width * width + recurrence


class RWKV5TimeMixState(NamedTuple):
    """The last input and the sums over the past."""

    last: Float[Array, "b d"]
    """The last input, in the dtype given to `init_state`."""
    s: Float[Array, "b h k v"]
    """Decayed sum of `k_j v_j^T`, float32."""


class RWKV5TimeMix(Mixer):
    """RWKV-5's time mixing; the state has a fixed size, and `step` costs O(value_width^2 / n_heads).

    `time_mix_key`, `time_mix_value`, `time_mix_receptance`, `time_mix_gate` (d,), `time_decay`, `time_first` (h, k),
    `norm_scale`, `norm_bias` (value_width,); `key`, `value`, `receptance`, `gate` (d, value_width), `output`
    (value_width, d): head-major columns.
    """

    config: RWKV5TimeMixConfig

    def __init__(self, config: RWKV5TimeMixConfig, *, rngs: nnx.Rngs) -> None:
        d, width, axes = config.width, config.values, ("embed", "heads")
        heads = (config.n_heads, config.head_width)
        self.time_mix_key: nnx.Param[jax.Array] = share(config)
        self.time_mix_value: nnx.Param[jax.Array] = share(config, more=0.3 * config.depth)
        self.time_mix_receptance: nnx.Param[jax.Array] = share(config, 0.5)
        self.time_mix_gate: nnx.Param[jax.Array] = share(config, 0.5)
        decays = decay_curve(config, width, lowest=-6.0, span=5.0).reshape(heads)
        self.time_decay: nnx.Param[jax.Array] = parameter(decays, ("heads", None), decay=False)
        bonus = config.depth * (1 - np.arange(width) / max(width - 1, 1)) + 0.1 * zigzag(width)
        self.time_first: nnx.Param[jax.Array] = parameter(
            jnp.asarray(bonus, jnp.float32).reshape(heads), ("heads", None), decay=False
        )
        scale = ((1 + config.layer_index) / config.n_layers) ** 0.7
        self.norm_scale: nnx.Param[jax.Array] = parameter(jnp.full((width,), scale), ("heads",), decay=False)
        self.norm_bias: nnx.Param[jax.Array] = parameter(jnp.zeros((width,)), ("heads",), decay=False)
        inward = {"axes": axes, "std": config.std, "rngs": rngs}
        self.key: nnx.Linear = projection(config, d, width, **inward)
        self.value: nnx.Linear = projection(config, d, width, **inward)
        self.receptance: nnx.Linear = projection(config, d, width, **inward)
        self.gate: nnx.Linear = projection(config, d, width, **inward)
        self.output: nnx.Linear = projection(config, width, d, axes=axes[::-1], std=config.out_std, gain=0.0, rngs=rngs)
        self.config = config

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        ids = context.segment_ids
        r, k, v, gate = self._project(x, token_shift(x, segment_ids=ids))
        o, _ = bonus_linear_attention(r, k, v, log_decay=self._log_decay(), bonus=self.time_first[...], segment_ids=ids)
        return self._merge(o, gate)

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> RWKV5TimeMixState:
        """Zeros. The sums are float32 whatever `dtype` says."""
        config = self.config
        shape = (batch_size, config.n_heads, config.head_width, config.head_width)
        return RWKV5TimeMixState(empty_last(batch_size, config.width, dtype), jnp.zeros(shape, jnp.float32))

    def prefill(
        self, x: Float[Array, "b t d"], state: RWKV5TimeMixState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], RWKV5TimeMixState]:
        r, k, v, gate = self._project(x, token_shift(x, state.last))
        o, s = bonus_linear_attention(
            r, k, v, log_decay=self._log_decay(), bonus=self.time_first[...], initial_state=state.s
        )
        return self._merge(o, gate), RWKV5TimeMixState(last_input(state.last, x), s)

    def step(
        self, x_t: Float[Array, "b d"], state: RWKV5TimeMixState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b d"], RWKV5TimeMixState]:
        r, k, v, gate = self._project(x_t, state.last.astype(x_t.dtype))
        o, s = bonus_linear_attention_step(state.s, r, k, v, log_decay=self._log_decay(), bonus=self.time_first[...])
        return self._merge(o, gate), RWKV5TimeMixState(x_t.astype(state.last.dtype), s)

    def _project(self, x: Float[Array, "... d"], shifted: Float[Array, "... d"]) -> tuple[jax.Array, ...]:
        """Receptance, keys and values `(..., h, k)`, and the gate `(..., value_width)`."""
        r = self.receptance(mix(x, shifted, self.time_mix_receptance[...]))
        k = self.key(mix(x, shifted, self.time_mix_key[...]))
        v = self.value(mix(x, shifted, self.time_mix_value[...]))
        gate = jax.nn.silu(self.gate(mix(x, shifted, self.time_mix_gate[...])))
        r, k, v = (y.reshape(*x.shape[:-1], self.config.n_heads, self.config.head_width) for y in (r, k, v))
        return r, k, v, gate

    def _merge(self, o: Float[Array, "... h v"], gate: Float[Array, "... hv"]) -> Float[Array, "... d"]:
        """Normalises the heads, joins, gates and projects them back to the model width."""
        y = head_norm(o, "layer", eps=self.config.norm_eps).reshape(gate.shape)
        scale, bias = (
            x[...].astype(y.dtype).reshape((1,) * (y.ndim - 1) + (-1,)) for x in (self.norm_scale, self.norm_bias)
        )
        return self.output((scale * y + bias) * gate)

    def _log_decay(self) -> Float[Array, "h k"]:
        return -jnp.exp(self.time_decay[...])
