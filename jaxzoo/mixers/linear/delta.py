"""Shared parts of the delta-rule mixers: projections, short convolutions, L2-normalized queries and keys, the state.

For each head, with a causal convolution of `n_taps` taps per channel:

    q, k, v = silu(conv(x W_q)), silu(conv(x W_k)), silu(conv(x W_v))        beta = sigmoid(x W_beta)
    S_t = D_t S_{t-1} + beta_t k'_t (v_t - k'_t^T D_t S_{t-1})^T               o_t = S_t^T q'_t / sqrt(k)

with q' = q / |q| and k' = k / |k|. Each mixer defines its decay D and the map from o to the output. `negative` doubles
beta, for eigenvalues of the transition from -1 to 1 (arXiv 2411.12537).

One convolution covers the channels of q, k and v; with a single tap of 1 it has no effect (fla's
`use_short_conv=False`). The length of q and k is sqrt(sum of squares + 1e-6), as in public code, which also scales q by
1 / sqrt(k); papers do not print that, and the norm of o cancels it up to its eps.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history
from jaxzoo.layers.decay import a_log_parameter, dt_bias_parameter, time_step
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import joint_linear, linear, split_heads
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.layers.variables import along_last
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.delta_rule import CHUNK, delta_rule, delta_rule_step
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaConfig(MixerConfig):
    """Heads, widths and convolutions of a mixer of the delta rule; abstract."""

    promises = Capabilities(segments=True, sequence_parallel=True)
    general = False  # the removal has vectors of its own (`Removal`)
    size_fields = ("key_width", "value_width")

    n_heads: PositiveInt = 1
    """Number of heads of queries and keys."""
    key_width: PositiveInt | None = None
    """Total width of the queries, and of the keys, of all heads; None: d_model."""
    value_width: PositiveInt | None = None
    """Total width of the values of all heads; None: d_model."""
    n_value_heads: PositiveInt | None = None
    """Heads of values; neighbouring groups share a head of queries and keys (Qwen3-Next); None: n_heads."""
    n_taps: PositiveInt = 4
    """Taps of the convolutions, including the current token's."""
    conv_bias: bool = False
    """Biases in the convolutions."""
    negative: bool = False
    """Betas in (0, 2) instead of (0, 1): eigenvalues down to -1, for state tracking (arXiv 2411.12537)."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in the norm of each head's output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("n_value_heads", self.heads % self.n_heads == 0, f"must be a multiple of n_heads={self.n_heads}")
        if self.d_model is not None:
            for field, width, heads in (("key", self.keys, self.n_heads), ("value", self.values, self.heads)):
                name = f"{field}_width"
                rule = f"gives {width} channels, which must be a multiple of {heads} heads"
                self.require(name, width % heads == 0, rule)

    @property
    def heads(self) -> int:
        """Heads of values, with the default filled in."""
        return self.n_value_heads or self.n_heads

    @property
    def keys(self) -> int:
        """Width of all keys, with the default filled in."""
        return self.key_width or self.width

    @property
    def values(self) -> int:
        """Width of all values, with the default filled in."""
        return self.value_width or self.width

    @property
    def updates(self) -> int:
        """Delta-rule updates per token, each with keys, values and betas of its own."""
        return 1

    @property
    def betas(self) -> int:
        """Outputs of the projection to the betas."""
        return self.heads * self.updates

    @property
    def convolved(self) -> int:
        """Channels of the convolution: q, k and v."""
        return self.keys + self.updates * (self.keys + self.values)

    @property
    def plain_channels(self) -> int:
        """Number of channels, from the first on, without a SiLU after the convolution."""
        return 0

    @property
    def head_key(self) -> int:
        """Key width of a head."""
        return self.keys // self.n_heads

    @property
    def head_value(self) -> int:
        """Value width of a head."""
        return self.values // self.heads

    def delta_flops(self, length: int) -> float:
        """FLOPs per token of the projections, the convolutions, and the recurrence: per chunk two products with keys,
        one product and the solve with values, and two reads and one update of the state; in the general form twice as
        many, and two updates."""
        k, c, form = self.head_key, min(CHUNK, length * self.updates), 1 + self.general
        projections = 2.0 * self.width * (self.convolved + self.betas + self.values)
        recurrence = 4.0 * form * c * (k * self.heads + self.values) + (4.0 + 2.0 * form) * k * self.values
        return projections + self.convolved * conv_flops(self.n_taps, length) + self.updates * recurrence


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedDeltaConfig(DeltaConfig):
    """The same with a decay per token and head, and an output gate; abstract."""

    gate: bool = True
    """Multiplies the normalized heads by an activation of x W_G."""

    @property
    def decays(self) -> bool:
        """Whether the state decays."""
        return True

    def flops_per_token(self, length: int) -> float:
        """See `delta_flops`; the projections of gate and decay."""
        return self.delta_flops(length) + 2.0 * self.width * (self.values * self.gate + self.heads * self.decays)


class DeltaState(NamedTuple):
    """Shift register and fast weights."""

    history: Float[Array, "b w-1 d"]
    """The last `n_taps - 1` projected queries, keys and values, oldest first, in the dtype given to `init_state`."""
    s: Float[Array, "b h k v"]
    """`S` of the module docstring, float32."""


class DeltaMixer(Mixer):
    """The three forms of a delta-rule mixer; abstract: a subclass defines `_decay`, `norm`, and `gate_proj` or `_gate`.

    `q_proj`, `k_proj` (d, key_width), `v_proj` (d, value_width), `beta_proj` (d, heads), `conv.taps` (n_taps,
    2 key_width + value_width: q, k, v), `conv.bias` where asked for, `out_proj` (value_width, d).
    """

    config: Any
    norm: GatedNorm
    gate_proj: nnx.Linear

    def __init__(self, config: DeltaConfig, *, rngs: nnx.Rngs) -> None:
        d, std, axes = config.width, config.std, ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, config.keys, axes=axes, std=std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, config.keys * config.updates, axes=axes, std=std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, config.values * config.updates, axes=axes, std=std, rngs=rngs)
        self.beta_proj: nnx.Linear = linear(d, config.betas, axes=axes, std=std, rngs=rngs)
        inner = config.convolved
        plain, biased = config.plain_channels, config.conv_bias
        self.conv: ShortConv = ShortConv(inner, config.n_taps, bias=biased, n_plain=plain, axis="heads", rngs=rngs)
        self.out_proj: nnx.Linear = linear(config.values, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def _decay(self, x: Float[Array, "... d"]) -> Array | None:
        """Log decays of the tokens, `(..., h)` or `(..., h, k)`, float32; None: no decay."""
        raise NotImplementedError

    def _gate(self, x: Float[Array, "... d"]) -> Float[Array, "... d"] | None:
        """Output gate before its activation, `(..., value_width)`; None: no gate."""
        return self.gate_proj(x) if self.config.gate else None

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> DeltaState:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        s = jnp.zeros((batch_size, config.heads, config.head_key, config.head_value), jnp.float32)
        return DeltaState(empty_history(batch_size, config.n_taps, config.convolved, dtype), s)

    def mix(self, x: Float[Array, "*b d"], state: DeltaState | None, context: Context) -> tuple[Array, DeltaState]:
        config, ids = self.config, context.segment_ids
        projected = joint_linear(x, self.q_proj, self.k_proj, self.v_proj)
        convolved, history = self.conv(projected, None if state is None else state.history, segment_ids=ids)
        q, k, v = jnp.split(convolved, (config.keys, config.keys * (1 + config.updates)), axis=-1)
        q, k, v = (split_heads(y, y.shape[-1] // width) for y, width in zip((q, k, v), self._widths, strict=True))
        o, s = self._recurrence(x, q, k, v, None if state is None else state.s, ids)
        gate = self._gate(x)
        y = self.norm(o, None if gate is None else gate.reshape(o.shape))
        return self.out_proj(y.reshape(*x.shape[:-1], config.values)), DeltaState(history, s)

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Width of a head's queries, keys and values."""
        return self.config.head_key, self.config.head_key, self.config.head_value

    def _recurrence(
        self,
        x: Float[Array, "*b d"],
        q: Float[Array, "*b g k"],
        k: Float[Array, "*b g k"],
        v: Float[Array, "*b h v"],
        s: Float[Array, "b h k v"] | None,
        ids: Int[Array, "b t"] | None,
    ) -> tuple[Float[Array, "*b h v"], Float[Array, "b h k v"]]:
        """Outputs of the heads, by queries and keys that are not normalized yet, and the state after them."""
        q, k = self._for_values(self._normalized(q)), self._for_values(self._normalized(k))
        return self._rule(s, q, k, v, ids, beta=self._beta(x), log_decay=self._decay(x))

    def _rule(
        self, s: Array | None, q: Array, k: Array, v: Array, ids: Array | None, **options: Any
    ) -> tuple[Array, Array]:
        """The delta rule of one token, or of all, with q / sqrt(k)."""
        q = q * self.config.head_key**-0.5
        if s is not None and q.ndim == 3:
            return delta_rule_step(s, q, k, v, **options)
        return delta_rule(q, k, v, **options, segment_ids=ids, initial_state=s)

    def _beta(self, x: Float[Array, "... d"]) -> Float[Array, "... h"]:
        beta = jax.nn.sigmoid(self.beta_proj(x).astype(jnp.float32))
        return 2 * beta if self.config.negative else beta

    def _for_values(self, x: Float[Array, "... g k"]) -> Float[Array, "... h k"]:
        """Each head of queries or keys as often as it serves heads of values."""
        return jnp.repeat(x, self.config.heads // self.config.n_heads, axis=-2)

    def _normalized(self, x: Float[Array, "... k"]) -> Float[Array, "... k"]:
        """Normalizes queries or keys to length 1, computing the length in float32."""
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True) + np.float32(1e-6))).astype(x.dtype)


class GatedDeltaMixer(DeltaMixer):
    """A delta-rule mixer with the decay of Mamba-2, log a = -exp(A_log) softplus(x W_a + dt_bias); abstract.

    Parameters of `DeltaMixer`, `decay_proj` (d, heads), `a_log`, `dt_bias` (heads,), `gate_proj` (d, value_width),
    `norm.scale` (value_width / heads,).
    """

    config: Any

    def __init__(
        self, config: GatedDeltaConfig, *, activation: Literal["silu", "sigmoid"] = "silu", rngs: nnx.Rngs
    ) -> None:
        super().__init__(config, rngs=rngs)
        d, std, axes = config.width, config.std, ("embed", "heads")
        if config.decays:
            self.decay_proj: nnx.Linear = linear(d, config.heads, axes=axes, std=std, rngs=rngs)
            self.a_log: nnx.Param[jax.Array] = a_log_parameter(config.heads, low=0.0, high=16.0, rngs=rngs)
            self.dt_bias: nnx.Param[jax.Array] = dt_bias_parameter(config.heads, rngs=rngs)
        if config.gate:
            self.gate_proj: nnx.Linear = linear(d, config.values, axes=axes, std=std, rngs=rngs)
        self.norm: GatedNorm = GatedNorm(config.head_value, eps=config.norm_eps, activation=activation)

    def _decay(self, x: Float[Array, "... d"]) -> Float[Array, "... h"] | None:
        if not self.config.decays:
            return None
        step = time_step(self.decay_proj(x), self.dt_bias[...])
        return -jnp.exp(along_last(self.a_log[...], step)) * step
