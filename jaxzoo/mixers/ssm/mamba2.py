"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): state space duality, one decay per token and head.

With `inner = expand d_model` channels in heads of `head_dim`, and B, C shared by the heads of a group (sec. 7):

    z, x, B, C, dt = split(u W_in)        x, B, C = silu(conv(x, B, C) + b_conv)        delta = softplus(dt + dt_bias)
    S_t = exp(-exp(A_log) delta_t) S_{t-1} + B_t (delta_t x_t)^T        y_t = S_t^T C_t + D x_t
    out = (scale . rms(y . silu(z))) W_out

The recurrence is `linear_attention` with queries C, keys B and values delta x. The norm is over the channels of a
group; the gate is applied before it, as in the paper and its code. Options of the code: the other order
(`norm_before_gate`), no norm (`normalize=False`, its `rmsnorm`), `dt_limit`, biases of the projections and of the
convolution, and a skip per channel (`D_has_hdim`).

`n_levels` > 0 is log-linear Mamba-2 (Guo et al. 2025, arXiv 2506.04761): the past is split into runs of tokens, whose
lengths are powers of two, each with its own state and a weight that depends on the token, lambda = softplus(L . l)
(`jaxzoo/ops/log_linear_attention.py`). L is `level_scale`, initially 1; l is the last part of u W_in.

| ours                       | `Mamba2Mixer` of transformers and the public code                                    |
| -------------------------- | ------------------------------------------------------------------------------------ |
| `in_proj`                  | `in_proj.weight`, transposed: z, x, B, C, dt                                         |
| `conv.taps`, `conv.bias`   | `conv1d.weight[:, 0, ::-1]`, transposed: of x, B, C; `conv1d.bias`                   |
| `a_log`, `dt_bias`, `skip` | `A_log`, `dt_bias`, `D`: one number per head, without weight decay                   |
| `norm.scale`, `out_proj`   | `norm.weight`; `out_proj.weight`, transposed                                         |

Initialisation: exp(A_log) uniform in [1, 16], skip 1, dt_bias the inverse softplus of a delta that is log-uniform in
[0.001, 0.1] and at least 1e-4, the convolution uniform in +-1/sqrt(n_taps). Deviation: projections start normal
(`init_std`, `out_init_std`); PyTorch's default is uniform.

Good at: Text at the speed of matrix products, with states several times larger than those of Mamba.
Paper: Dao and Gu 2024, https://arxiv.org/abs/2405.21060
"""

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history
from jaxzoo.layers.decay import a_log_parameter, dt_bias_parameter, time_step
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.probe import show, show_scores
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention_from
from jaxzoo.ops.log_linear_attention import (
    LogLinearState,
    empty_log_linear_state,
    log_linear_attention,
    log_linear_attention_step,
)
from jaxzoo.ops.segments import position_in_segment
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mamba2Config(MixerConfig):
    """Config of `Mamba2`; the defaults are the paper's."""

    size_fields = ("d_state",)

    d_state: PositiveInt = 128
    """Width of B and C, the paper's N."""
    expand: PositiveInt = 2
    """Channels of the inner branch, as a multiple of d_model."""
    head_dim: PositiveInt | None = None
    """Channels per head, the paper's P; None: 64, or all inner channels if there are fewer."""
    n_groups: PositiveInt = 1
    """Groups of neighbouring heads that share B and C."""
    n_taps: PositiveInt = 4
    """Taps of the convolution, including the current token's."""
    norm_before_gate: bool = False
    """Applies the gate after the norm instead of before."""
    normalize: bool = True
    """Applies the norm; False: only the gate."""
    dt_limit: tuple[NonNegativeFloat, PositiveFloat] | None = None
    """Bounds to which delta is clipped; None: no clipping."""
    proj_bias: bool = False
    """Biases of the input and output projections."""
    conv_bias: bool = True
    """Bias of the convolution."""
    skip_per_channel: bool = False
    """D per channel instead of per head."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in the norm."""
    n_levels: NonNegativeInt = 0
    """Levels of log-linear attention, exact for 2^(n_levels - 1) tokens, with n_levels - 1 states; 0: Mamba-2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = self.dt_limit is None or self.dt_limit[0] < self.dt_limit[1]
        self.require("dt_limit", ordered, "must be two bounds, the lower first")
        self.require("n_levels", self.n_levels != 1, "must be 0 or at least 2")
        if self.d_model is not None:
            rule = f"must divide expand * d_model={self.inner}"
            self.require("head_dim", self.inner % self.head_width == 0, rule, value=self.head_width)
            self.require("n_groups", self.heads % self.n_groups == 0, f"must divide the {self.heads} heads")

    @property
    def inner(self) -> int:
        """Channels of the inner branch."""
        return self.expand * self.width

    @property
    def head_width(self) -> int:
        """`head_dim`, with the default filled in."""
        return self.head_dim or min(64, self.inner)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.inner // self.head_width

    @property
    def convolved(self) -> int:
        """Channels of x, B and C."""
        return self.inner + 2 * self.n_groups * self.d_state

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(segments=True, sequence_parallel=self.n_levels == 0)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=6, d_state=3, head_dim=3, n_groups=2, n_taps=3)

    def flops_per_token(self, length: int) -> float:
        """Projections, convolution, scores of a chunk with their values, state update and read."""
        inner, n = self.inner, self.d_state
        projections = 2.0 * self.width * (2 * inner + self.convolved + self.heads * (1 + self.n_levels))
        recurrence = 2.0 * min(CHUNK, length) * (n * self.heads + inner) + 4.0 * n * inner * max(self.n_levels - 1, 1)
        return projections + self.convolved * conv_flops(self.n_taps, length) + recurrence


class Mamba2State(NamedTuple):
    """Shift register and sums."""

    history: Float[Array, "b w-1 d"]
    """The last `n_taps - 1` inputs of the convolution, oldest first, in the dtype given to `init_state`."""
    s: Float[Array, "b h k v"]
    """`S` of the module docstring (h, d_state, head_dim), float32."""


class Mamba2LevelsState(NamedTuple):
    """Shift register and sums per level, for log-linear Mamba-2."""

    history: Float[Array, "b w-1 d"]
    """History of the convolution, as in `Mamba2State`."""
    s: Float[Array, "b levels h k v"]
    """Sums of the levels above the first, float32."""
    place: Int[Array, "b"]
    """Tokens so far, int32."""


class Mamba2(Mixer):
    """Selective state space with scalar decays; `step` costs O(d_state) per channel, besides the projections.

    `in_proj` (d, 2 inner + 2 n_groups d_state + heads (1 + n_levels)), `conv.taps` (n_taps, inner + 2 n_groups
    d_state), `conv.bias`, `level_scale` (heads, n_levels),
    `a_log`, `dt_bias` (heads,), `skip` (heads,) or (inner,), `norm.scale` (inner,), `out_proj` (inner, d).
    """

    config: Mamba2Config

    def __init__(self, config: Mamba2Config, *, rngs: nnx.Rngs) -> None:
        d, inner, heads = config.width, config.inner, config.heads
        width, bias = inner + config.convolved + heads * (1 + config.n_levels), config.proj_bias
        self.in_proj: nnx.Linear = linear(d, width, axes=("embed", "heads"), std=config.std, bias=bias, rngs=rngs)
        self.conv: ShortConv = ShortConv(
            config.convolved, config.n_taps, bias=config.conv_bias, n_plain=0, axis="heads", rngs=rngs
        )
        self.a_log: nnx.Param[jax.Array] = a_log_parameter(heads, low=1.0, high=16.0, rngs=rngs)
        self.dt_bias: nnx.Param[jax.Array] = dt_bias_parameter(heads, rngs=rngs)
        self.skip: nnx.Param[jax.Array] = parameter(
            jnp.ones((inner if config.skip_per_channel else heads,)), ("heads",), decay=False
        )
        if config.n_levels:
            self.level_scale: nnx.Param[jax.Array] = parameter(
                jnp.ones((heads, config.n_levels)), ("heads", None), decay=False
            )
        if config.normalize:
            gate_first = not config.norm_before_gate
            self.norm: GatedNorm = GatedNorm(
                inner, eps=config.norm_eps, groups=config.n_groups, gate_first=gate_first, axis="heads"
            )
        self.out_proj: nnx.Linear = linear(inner, d, axes=("heads", "embed"), std=config.out_std, bias=bias, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> Mamba2State | Mamba2LevelsState:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        history = empty_history(batch_size, config.n_taps, config.convolved, dtype)
        if config.n_levels:
            return Mamba2LevelsState(history, *self._no_levels(batch_size, config.head_width))
        return Mamba2State(history, jnp.zeros((batch_size, config.heads, config.d_state, config.head_width)))

    def mix(
        self, x: Float[Array, "*b d"], state: Mamba2State | Mamba2LevelsState | None, context: Context
    ) -> tuple[Array, Mamba2State | Mamba2LevelsState]:
        config, ids = self.config, context.segment_ids
        inner, state_width = config.inner, config.n_groups * config.d_state
        z, inputs, dt = jnp.split(self.in_proj(x), (inner, inner + config.convolved), axis=-1)
        dt, levels = dt[..., : config.heads], dt[..., config.heads :]
        convolved, history = self.conv(inputs, None if state is None else state.history, segment_ids=ids)
        u, b, c = jnp.split(convolved, (inner, inner + state_width), axis=-1)
        u, b, c = split_heads(u, config.heads), split_heads(b, config.n_groups), split_heads(c, config.n_groups)
        delta = time_step(dt, self.dt_bias[...])
        if config.dt_limit is not None:
            delta = jnp.clip(delta, *config.dt_limit)
        log_decay = -jnp.exp(along_last(self.a_log[...], delta)) * delta
        du = (u.astype(jnp.float32) * delta[..., None]).astype(u.dtype)
        if config.n_levels:
            sums = None if state is None else LogLinearState(*state[1:])
            y, after = self._read_levels(sums, c, b, du, log_decay, levels, ids)
            return self._merge(y, u, z), Mamba2LevelsState(history, *after)
        before = None if state is None else LinearState(state.s, None)
        y, after = linear_attention_from(before, c, b, du, log_decay=log_decay, segment_ids=ids)
        return self._merge(y, u, z), Mamba2State(history, after.s)

    def _read_levels(
        self,
        sums: LogLinearState | None,
        c: Float[Array, "... g k"],
        b: Float[Array, "... g k"],
        du: Float[Array, "... h v"],
        log_decay: Float[Array, "... h"],
        levels: Float[Array, "... levels"],
        segment_ids: Int[Array, "b t"] | None,
    ) -> tuple[Array, LogLinearState]:
        """Outputs `(..., h, v)` and final sums, given the logits of the levels of all heads."""
        config = self.config
        scale = self.level_scale[...].reshape((1,) * (du.ndim - 2) + (config.heads, -1))
        scales = jax.nn.softplus(scale * levels.astype(jnp.float32).reshape(*log_decay.shape, config.n_levels))
        c, b = (jnp.repeat(y, config.heads // config.n_groups, axis=-2) for y in (c, b))
        options: dict[str, Any] = {"log_decay": log_decay, "scales": scales}
        if sums is not None and du.ndim == 3:
            return log_linear_attention_step(sums, c, b, du, **options)
        if sums is not None:
            return log_linear_attention(c, b, du, **options, state=sums)
        options["log_decay"] = show("log_decay", log_decay)
        places = None if segment_ids is None else position_in_segment(segment_ids)

        def read(du: Float[Array, "b t h v"]) -> tuple[Array, LogLinearState]:
            start = self._no_levels(du.shape[0], du.shape[-1])
            return log_linear_attention(c, b, du, **options, state=start, places=places)

        show_scores(lambda du: read(du)[0], du)
        return read(du)

    def _no_levels(self, batch_size: int, v_dim: int) -> LogLinearState:
        config = self.config
        return empty_log_linear_state(batch_size, config.n_levels, config.heads, config.d_state, v_dim)

    def _merge(self, y: Float[Array, "... h v"], u: Float[Array, "... h v"], z: Float[Array, "... d"]) -> Array:
        """Adds the skip, applies gate and norm, and projects to the model width."""
        skip = self.skip[...].astype(u.dtype).reshape(self.config.heads, -1)
        y = (y + u * skip.reshape((1,) * (u.ndim - 2) + skip.shape)).reshape(z.shape)
        return self.out_proj(self.norm(y, z) if self.config.normalize else y * jax.nn.silu(z))
