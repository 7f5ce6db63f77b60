"""Mamba (Gu and Dao 2023): a diagonal state space model whose step, input and output maps depend on the token.

With a causal depthwise convolution of `n_taps` taps, channels i of `inner = expand d_model` and states n (Algorithm 2,
Figure 3, sec. 3.6):

    x, z = split(u W_in)              x = silu(conv(x) + b_conv)           r, B, C = split(x W_x)
    delta = softplus(r W_dt + b_dt)   A = -exp(A_log)
    h_t[i, n] = exp(delta_t[i] A[i, n]) h_{t-1}[i, n] + delta_t[i] B_t[n] x_t[i]
    y_t[i] = sum_n C_t[n] h_t[i, n] + D[i] x_t[i]                           out = (y . silu(z)) W_out

Discretization: zero-order hold for A, and Euler's rule for B, delta B, as in the public code and all published models.
`discretization="zoh"` is the paper's eq. 4, a zero-order hold for B too: (exp(delta A) - 1) / A instead of delta.

| ours            | `MambaMixer` of transformers and the public code                                 |
| --------------- | -------------------------------------------------------------------------------- |
| `in_proj`       | `in_proj.weight`, transposed: the branch x first, then z                          |
| `taps`          | `conv1d.weight[:, 0, ::-1]`, transposed: `taps[a]` multiplies the x of a steps ago |
| `conv_bias`     | `conv1d.bias`                                                                    |
| `x_proj`        | `x_proj.weight`, transposed: r, then B, then C                                   |
| `dt_proj`       | `dt_proj.weight`, transposed                                                     |
| `dt_bias`       | `dt_proj.bias`, added in float32                                                 |
| `a_log`, `skip` | `A_log`, `D`, both without weight decay                                          |
| `out_proj`      | `out_proj.weight`, transposed                                                    |

Initialisation: `a_log` log(1 .. d_state), `skip` 1, `dt_proj` uniform in +-dt_rank^(-1/2), `dt_bias` the inverse
softplus of a delta that is log-uniform in [dt_min, dt_max] and at least dt_floor; taps and their bias uniform in
+-1/sqrt(n_taps), the other projections in +-1/sqrt(fan_in) (PyTorch's default, also in Zoology). `out_proj` is scaled
by out_init_std / init_std: 1/sqrt(2 n_layers) in a model, in the public code 1/sqrt(n_layers).

Good at: Text at constant memory: each token decides what the state keeps.
Paper: Gu and Dao 2023, https://arxiv.org/abs/2312.00752
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import Partial
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveFloat, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history, uniform_parameter
from jaxzoo.layers.decay import dt_bias_parameter
from jaxzoo.layers.linear import branches, linear
from jaxzoo.layers.norm import scaled_norm
from jaxzoo.layers.probe import show
from jaxzoo.layers.short_conv import short_conv_from
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.diagonal_scan import diagonal_scan, diagonal_step
from jaxzoo.parallel.sharding import on_mesh
from jaxzoo.utils.array_typing import Array, Float
from pallas_kernels.selective_scan import selective_scan, sharded_selective_scan


@dataclasses.dataclass(frozen=True, kw_only=True)
class MambaConfig(MixerConfig):
    """Config of `Mamba`; the defaults are the paper's."""

    promises = Capabilities(segments=True, sequence_parallel=True)
    size_fields = ("d_state",)

    d_state: PositiveInt = 16
    """State numbers per channel, the paper's N."""
    expand: PositiveInt = 2
    """Channels of the inner branch, as a multiple of d_model; the paper's E."""
    n_taps: PositiveInt = 4
    """Taps of the convolution, including the current token's."""
    dt_rank: PositiveInt | None = None
    """Rank of the map to delta; None: d_model / 16, rounded up."""
    dt_min: PositiveFloat = 0.001
    """Smallest initial delta."""
    dt_max: PositiveFloat = 0.1
    """Largest initial delta."""
    dt_floor: PositiveFloat = 1e-4
    """Initial deltas below it are raised to it."""
    discretization: Literal["release", "zoh"] = "release"
    """Discretization of B: Euler's rule, as in the public code, or the paper's zero-order hold."""
    projected_norm_eps: NonNegativeFloat = 0.0
    """Eps of RMS norms, without scale, of the low-rank delta, B and C (Falcon-Mamba); 0: no such norms."""
    projection_init: Literal["uniform", "normal"] = "uniform"
    """Initialisation of in_proj, x_proj and out_proj: uniform as published, or normal with `init_std`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("dt_max", self.dt_max >= self.dt_min, f"must be at least dt_min={self.dt_min}")

    @property
    def inner(self) -> int:
        """Channels of the inner branch."""
        return self.expand * self.width

    @property
    def rank(self) -> int:
        """`dt_rank`, with the default filled in."""
        return self.dt_rank or math.ceil(self.width / 16)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, d_state=3, dt_rank=2, dt_min=0.1, dt_max=1.0)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections, convolution, and 6 per state number: delta A, (delta x) B, a h + b, C h."""
        d, inner, n = self.width, self.inner, self.d_state
        projections = 2.0 * inner * (3 * d + 2 * self.rank + 2 * n)
        return projections + inner * (conv_flops(self.n_taps, length) + 6 * n)

    def papers_state_size(self, length: int) -> int:
        """Eq. 12, without the convolution: `2 d d_state`; the 2 is `expand`."""
        return 2 * self.width * self.d_state


class MambaState(NamedTuple):
    """Shift register and sums."""

    history: Float[Array, "b w-1 d"]
    """The last `n_taps - 1` inputs of the convolution, oldest first, in the dtype given to `init_state`."""
    h: Float[Array, "b d n"]
    """`h` of the module docstring, `inner` channels, float32."""


class Mamba(Mixer):
    """Selective state space; `step` costs O(d_state) per channel, and the projections.

    `in_proj` (d, 2 inner), `taps` (n_taps, inner), `conv_bias` (inner,), `x_proj` (inner, dt_rank + 2 d_state),
    `dt_proj` (dt_rank, inner), `dt_bias` (inner,), `a_log` (inner, d_state), `skip` (inner,), `out_proj` (inner, d).
    """

    config: MambaConfig

    def __init__(self, config: MambaConfig, *, rngs: nnx.Rngs) -> None:
        d, inner, n, rank, std = config.width, config.inner, config.d_state, config.rank, config.std
        channels = ("channels",)
        self.in_proj: nnx.Linear = linear(d, 2 * inner, axes=("embed", *channels), std=std, rngs=rngs)
        self.taps: nnx.Param[jax.Array] = uniform_parameter(
            (config.n_taps, inner), config.n_taps, (None, *channels), rngs=rngs
        )
        self.conv_bias: nnx.Param[jax.Array] = uniform_parameter(
            (inner,), config.n_taps, channels, decay=False, rngs=rngs
        )
        self.x_proj: nnx.Linear = linear(inner, rank + 2 * n, axes=(*channels, None), std=std, rngs=rngs)
        self.dt_proj: nnx.Linear = linear(rank, inner, axes=(None, *channels), rngs=rngs)
        _make_uniform(self.dt_proj, rngs)
        self.dt_bias: nnx.Param[jax.Array] = dt_bias_parameter(
            inner, low=config.dt_min, high=config.dt_max, floor=config.dt_floor, axis="channels", rngs=rngs
        )
        a_log = jnp.tile(jnp.log(jnp.arange(1, n + 1, dtype=jnp.float32))[None], (inner, 1))
        self.a_log: nnx.Param[jax.Array] = parameter(a_log, (*channels, None), decay=False)
        self.skip: nnx.Param[jax.Array] = parameter(jnp.ones((inner,)), channels, decay=False)
        self.out_proj: nnx.Linear = linear(inner, d, axes=(*channels, "embed"), std=config.out_std, rngs=rngs)
        if config.projection_init == "uniform":
            _make_uniform(self.in_proj, rngs)
            _make_uniform(self.x_proj, rngs)
            _make_uniform(self.out_proj, rngs, scale=config.out_std / std if std else 1.0)
        self.config = config

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> MambaState:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        h = jnp.zeros((batch_size, config.inner, config.d_state), jnp.float32)
        return MambaState(empty_history(batch_size, config.n_taps, config.inner, dtype), h)

    def mix(self, x: Float[Array, "*b d"], state: MambaState | None, context: Context) -> tuple[Array, MambaState]:
        config, ids = self.config, context.segment_ids
        u, z = branches(x, self.in_proj, 2)
        history, h = (None, self.init_state(x.shape[0]).h) if state is None else state
        u, history = short_conv_from(history, u, self.taps[...], bias=self.conv_bias[...], segment_ids=ids)
        r, b, c = jnp.split(self.x_proj(u), (config.rank, config.rank + config.d_state), axis=-1)
        if eps := config.projected_norm_eps:
            r, b, c = (scaled_norm(x, jnp.ones(x.shape[-1], x.dtype), eps, False) for x in (r, b, c))
        logits = self.dt_proj(r).astype(jnp.float32)
        delta = show("delta", jax.nn.softplus(logits + along_last(self.dt_bias[...], logits)))
        make = _by_zero_order_hold if config.discretization == "zoh" else _by_euler
        coefficients, tokens = Partial(make, self.a_log[...]), _ScanTokens(u, delta, b, c)
        if x.ndim == 2:
            y, h = diagonal_step(tokens, coefficients, _readout, h)
        elif config.discretization == "zoh":
            y, h = diagonal_scan(tokens, coefficients, _readout, h, segment_ids=ids)
        else:
            a, heads = -jnp.exp(self.a_log[...]), jax.ShapeDtypeStruct((*u.shape, 1), u.dtype)
            scan = on_mesh(selective_scan, _sharded, heads, heads)
            y, h = scan(u, delta, a, b, c, segment_ids=ids, initial_state=h, return_state=True)
        y = y + u * along_last(self.skip[...], u)
        return self.out_proj(y * jax.nn.silu(z)), MambaState(history, h)


def _sharded(*arrays: Array, head_axes: tuple[str, ...], **options: Any) -> Any:
    """`selective_scan` with channels sharded like heads."""
    return sharded_selective_scan(*arrays, channel_axes=head_axes, **options)


class _ScanTokens(NamedTuple):
    """Inputs of the recurrence per token."""

    x: jax.Array  # (..., inner)
    delta: jax.Array  # (..., inner), float32
    b: jax.Array  # (..., d_state)
    c: jax.Array  # (..., d_state)


def _by_euler(a_log: jax.Array, tokens: _ScanTokens) -> tuple[jax.Array, jax.Array]:
    """Coefficients a and b, `(..., inner, d_state)`, as in the public code."""
    x, b = tokens.x.astype(jnp.float32), tokens.b.astype(jnp.float32)
    return jnp.exp(_log_a(a_log, tokens)[0]), (tokens.delta * x)[..., None] * b[..., None, :]


def _by_zero_order_hold(a_log: jax.Array, tokens: _ScanTokens) -> tuple[jax.Array, jax.Array]:
    """Coefficients a and b by the paper's zero-order hold."""
    log_a, a = _log_a(a_log, tokens)
    x, b = tokens.x.astype(jnp.float32), tokens.b.astype(jnp.float32)
    return jnp.exp(log_a), jnp.expm1(log_a) / a * x[..., None] * b[..., None, :]


def _log_a(a_log: jax.Array, tokens: _ScanTokens) -> tuple[jax.Array, jax.Array]:
    """delta A, and A."""
    a = -jnp.exp(a_log)
    a = a.reshape((1,) * (tokens.delta.ndim - 1) + a.shape)
    return tokens.delta[..., None] * a, a


def _readout(h: jax.Array, tokens: _ScanTokens) -> jax.Array:
    """`sum_n C[n] h[i, n]`, in the dtype of the token."""
    return (h * tokens.c.astype(jnp.float32)[..., None, :]).sum(-1).astype(tokens.x.dtype)


def _make_uniform(layer: nnx.Linear, rngs: nnx.Rngs, *, scale: float = 1.0) -> None:
    """Resets the kernel to uniform in +-scale / sqrt(fan_in)."""
    bound = scale * layer.in_features**-0.5
    layer.kernel[...] = jax.random.uniform(rngs.params(), layer.kernel.shape, jnp.float32, -bound, bound)
