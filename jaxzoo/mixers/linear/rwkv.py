"""Shared parts of the RWKV mixers: initial values by depth, token shift, heads and norm."""

import dataclasses
import math
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeInt, PositiveInt
from jaxzoo.layers.head_norm import head_norm
from jaxzoo.layers.linear import linear
from jaxzoo.layers.token_shift import token_shift
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig, State
from jaxzoo.ops.bonus_linear_attention import bonus_linear_attention, bonus_linear_attention_step
from jaxzoo.utils.array_typing import Array, Float

Sums = tuple[Array, ...]
"""Arrays of a time mix's state, without the last input."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKVConfig(MixerConfig):
    """Depth and initialisation of an RWKV mixer; abstract."""

    promises = Capabilities(segments=True, sequence_parallel=True)

    layer_index: NonNegativeInt = 0
    """Index l of the RWKV layer, counted from 0, on which initial token shifts and decays depend; the same for the time
    mix and the channel mix of a layer."""
    n_layers: PositiveInt = 1
    """Number L of RWKV layers in the model. At l = 0 only the norm of RWKV-5 depends on it."""
    projections: Literal["normal", "release"] = "normal"
    """Initial projections: normal (`init_std`, `out_init_std`), or orthogonal and zero as in the authors' code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("layer_index", self.layer_index < self.n_layers, f"must be below n_layers={self.n_layers}")

    @property
    def scanned_as(self) -> MixerConfig:
        return dataclasses.replace(self, layer_index=0, n_layers=1)

    @property
    def depth(self) -> float:
        """Relative depth l / (L - 1): 0 for the first layer, 1 for the last."""
        return self.layer_index / max(self.n_layers - 1, 1)


class RWKVState(NamedTuple):
    """State of the token shift."""

    last: Float[Array, "b d"]
    """The last input, in the dtype given to `init_state`."""


class RWKVHeadsState(NamedTuple):
    """Last input and sums over the past."""

    last: Float[Array, "b d"]
    """The last input, in the dtype given to `init_state`."""
    s: Float[Array, "b h k v"]
    """`S` of the module docstrings, float32."""


class RWKVMixer(Mixer):
    """Mixer with a token shift; abstract: a subclass defines `_mix`, a time mix also `state_class` and `_no_sums`."""

    config: Any
    state_class: ClassVar[Any] = RWKVState
    """NamedTuple of the last input and the sums."""

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> State:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        return self.state_class(jnp.zeros((batch_size, self.config.width), dtype), *self._no_sums(batch_size))

    def mix(self, x: Float[Array, "*b d"], state: State, context: Context) -> tuple[Array, State]:
        last, *sums = self.init_state(x.shape[0]) if state is None else state
        y, sums = self._mix(x, self._shifted(x, state, context), () if state is None else tuple(sums), context)
        inputs = x[:, None] if x.ndim == 2 else x
        last = jnp.concatenate([last[:, None], inputs.astype(last.dtype)], axis=1)[:, -1]
        return y, self.state_class(last, *sums)

    def _shifted(self, x: Float[Array, "*b d"], state: State, context: Context) -> Float[Array, "*b d"]:
        """Input of the token before each token."""
        if state is not None and x.ndim == 2:
            return state.last.astype(x.dtype)
        return token_shift(x, None if state is None else state.last, segment_ids=context.segment_ids)

    def _mix(self, x: Float[Array, "*b d"], shifted: Array, sums: Sums, context: Context) -> tuple[Array, Sums]:
        """Outputs and new sums; see `Mixer.mix`.

        Args:
          x: inputs.
          shifted: inputs of the previous tokens.
          sums: sums of the state; empty in a call.
          context: context of the call.
        """
        raise NotImplementedError

    def _no_sums(self, batch_size: int) -> Sums:
        """Initial sums, float32."""
        del batch_size
        return ()


class RWKVHeads(RWKVMixer):
    """Time mix with a matrix state per head and a group norm; abstract.

    `norm_scale` and `norm_bias` (h v,).
    """

    state_class = RWKVHeadsState

    def _make_norm(self, config: RWKVConfig, width: int) -> None:
        scale = ((1 + config.layer_index) / config.n_layers) ** 0.7
        self.norm_scale: nnx.Param[jax.Array] = parameter(jnp.full((width,), scale), ("heads",), decay=False)
        self.norm_bias: nnx.Param[jax.Array] = parameter(jnp.zeros((width,)), ("heads",), decay=False)

    def _no_sums(self, batch_size: int) -> Sums:
        config = self.config
        return (jnp.zeros((batch_size, config.n_heads, config.head_key, config.head_width), jnp.float32),)

    def _normed(self, o: Float[Array, "... h v"]) -> Float[Array, "... hv"]:
        """Normalizes and joins the heads, with a scale and shift per channel."""
        y = head_norm(o, "layer", eps=self.config.norm_eps).reshape(*o.shape[:-2], self.norm_scale.shape[0])
        return along_last(self.norm_scale[...], y) * y + along_last(self.norm_bias[...], y)


class RWKVBonusHeads(RWKVHeads):
    """Recurrence of RWKV-5 and 6; abstract: a subclass creates `output` and defines `_project`.

    `time_decay`, `time_first` (h, k).
    """

    output: nnx.Linear

    def _make_recurrence(self, config: Any, keys: int, values: int) -> None:
        """Creates decays, bonuses and norm."""
        decays = decay_curve(config, keys, lowest=-6.0, span=5.0).reshape(config.n_heads, -1)
        self.time_decay: nnx.Param[jax.Array] = parameter(decays, ("heads", None), decay=False)
        bonus = config.depth * (1 - np.arange(keys) / max(keys - 1, 1)) + 0.1 * zigzag(keys)
        bonus = jnp.asarray(bonus, jnp.float32).reshape(config.n_heads, -1)
        self.time_first: nnx.Param[jax.Array] = parameter(bonus, ("heads", None), decay=False)
        self._make_norm(config, values)

    def _mix(self, x: Float[Array, "*b d"], shifted: Array, sums: Sums, context: Context) -> tuple[Array, Sums]:
        r, k, v, gate, log_decay = self._project(x, shifted)
        options: dict[str, Any] = {"log_decay": log_decay, "bonus": self.time_first[...]}
        if x.ndim == 2:
            o, s = bonus_linear_attention_step(sums[0], r, k, v, **options)
        else:
            past: dict[str, Any] = {"segment_ids": context.segment_ids, "initial_state": sums[0] if sums else None}
            o, s = bonus_linear_attention(r, k, v, **options, **past)
        return self.output(self._normed(o) * gate), (s,)

    def _project(self, x: Float[Array, "... d"], shifted: Float[Array, "... d"]) -> tuple[Array, ...]:
        """Receptance, keys and values `(..., h, k)`, the gate `(..., value_width)`, and log decays, float32."""
        raise NotImplementedError


def projection(
    config: RWKVConfig,
    d_in: int,
    d_out: int,
    *,
    axes: tuple[Any, ...],
    std: float,
    gain: float | None = None,
    rngs: nnx.Rngs,
) -> nnx.Linear:
    """Projection without bias; in the authors' code initially an orthogonal matrix times `gain`, which may be 0. None:
    sqrt(d_out / d_in), at least 1 (their code up to RWKV-5)."""
    layer = linear(d_in, d_out, axes=axes, std=std, rngs=rngs)
    if config.projections == "release":
        gain = math.sqrt(max(1.0, d_out / d_in)) if gain is None else gain
        orthogonal = nnx.initializers.orthogonal(gain)
        layer.kernel[...] = orthogonal(rngs.params(), (d_in, d_out)) if gain else jnp.zeros((d_in, d_out))
    return layer


def share(config: RWKVConfig, power: float = 1.0, *, more: float = 0.0) -> nnx.Param[jax.Array]:
    """Initial weights of the token itself in a token shift, `(d,)`: `(i / d)^{power (1 - l / L)} + more` for channel
    i."""
    exponent = power * (1 - config.layer_index / config.n_layers)
    initial = (np.arange(config.width) / config.width) ** exponent + more
    return parameter(jnp.asarray(initial, jnp.float32), ("embed",), decay=False)


def decay_curve(config: RWKVConfig, width: int, *, lowest: float, span: float) -> jax.Array:
    """Initial logarithms of decay rates, float32 `(width,)`: `lowest + span (i / (width - 1))^{0.7 + 1.3 depth}`."""
    place = np.arange(width) / max(width - 1, 1)
    return jnp.asarray(lowest + span * place ** (0.7 + 1.3 * config.depth), jnp.float32)


def zigzag(width: int) -> np.ndarray:
    """Pattern 0, 1, -1, 0, 1, ... `(width,)`, which makes neighbouring channels differ."""
    return (np.arange(width) + 1) % 3 - 1.0
