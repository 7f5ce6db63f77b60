"""Mamba-3 (Lahoti et al. 2026, arXiv 2603.15569): a trapezoidal rule, states that turn, and several inputs at once.

With z, x, B, C, dt~, A~, l~ and angles = u W_in, and for every head with rank r = 1 .. R (SISO: R = 1):

    dt = softplus(dt~ + dt_bias)        A = -max(g(A~), 1e-4)        l = sigmoid(l~)
    k_r = R_t (rms(B_r) + B_bias_r)     q_r = R_t (rms(C_r) + C_bias_r)     v_r = x . mimo_x_r (SISO: x)
    S_t = e^(A dt) S_{t-1} + (1 - l) dt e^(A dt) sum_r k_{r,t-1} v_{r,t-1}^T + l dt sum_r k_{r,t} v_{r,t}^T
    y_r = S_t^T q_r + D v_r        out = sum_r mimo_o_r . y_r . silu(z . mimo_z_r) (SISO: y . silu(z)) W_out

R_t turns pairs of channels by the running sum of pi tanh(angles) dt, which is to turn the state the other way at each
token. The first n_angles pairs turn, `rope_fraction` of the state: in SISO channels 2i and 2i + 1 are a pair, in MIMO i
and i + d_state / 2, as in the kernels of state-spaces/mamba, whose form this is. Its g is 1 + x above 0 and 1 / (1 - x)
below; flash-linear-attention's is softplus (`activation`). B and C are shared by the heads of a group, their norms by
all. `normalize` (`is_outproj_norm`) puts scale . rms(y_r) in the place of y_r before the gate, head by head.

Names are those of state-spaces/mamba: `in_proj` has columns z, x, B (rank, group, channel), C, dt, A, l, angles;
`dt_bias`, `B_bias`, `C_bias` (heads, R, d_state), `B_norm`, `C_norm`, `D`, `mimo_x`, `mimo_z`, `mimo_o` (heads, R,
head_dim) are lower case here; B_norm.weight is `b_norm.scale`. Its state S is the transpose.

Initialisation: biases 1, mimo_x = mimo_o = 1 / R, mimo_z = 1, D = 1, dt_bias as in Mamba-2; none of them is decayed.

State: S, d_state head_dim numbers per head, and of the last token its angles, k_r and v.

Good at: State tracking and recall at the cost of Mamba-2: its states turn, and MIMO does more work per byte of state.
Paper: Lahoti et al. 2026, https://arxiv.org/abs/2603.15569
"""

import dataclasses
import math
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import FractionAboveZero, NonNegativeFloat, PositiveInt
from jaxzoo.layers.decay import dt_bias_parameter, time_step
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.probe import recording
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention
from jaxzoo.ops.segments import document_starts
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mamba3Config(MixerConfig):
    """Config of `Mamba3`; the defaults are the public code's."""

    promises = Capabilities(segments=True)

    d_state: PositiveInt = 128
    """Width of B and C."""
    expand: PositiveInt = 2
    """Channels of the inner branch, in units of d_model."""
    head_dim: PositiveInt | None = None
    """Channels of a head; None: 64, or all inner channels where these are fewer."""
    n_groups: PositiveInt = 1
    """Groups of neighbouring heads that share B and C."""
    rank: PositiveInt | None = None
    """R of MIMO (the public default is 4); None: SISO."""
    rope_fraction: FractionAboveZero = 0.5
    """Share of the state that turns."""
    activation: Literal["heavy_tail", "softplus"] = "heavy_tail"
    """g of A."""
    normalize: bool = False
    """Normalizes each head's output before its gate."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in all norms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("d_state", self.d_state % 2 == 0, "must be even: channels turn in pairs")
        self.require("rope_fraction", self.n_angles > 0, f"is too small to turn a pair of d_state={self.d_state}")
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
    def ranks(self) -> int:
        """Pairs of keys and values per token and head."""
        return self.rank or 1

    @property
    def n_angles(self) -> int:
        """Pairs of channels that turn."""
        return int(self.d_state * self.rope_fraction) // 2

    @property
    def splits(self) -> tuple[int, ...]:
        """Widths of z, x, B, C, dt, A, l and angles."""
        shared = self.ranks * self.n_groups * self.d_state
        return self.inner, self.inner, shared, shared, self.heads, self.heads, self.heads, self.n_angles

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=6, d_state=6, head_dim=3, n_groups=2, rank=2, rope_fraction=0.7, normalize=True)

    def flops_per_token(self, length: int) -> float:
        """Projections; per pair of keys and values two writes of the state and scores of a chunk, one read per rank."""
        inner, n, micro = self.inner, self.d_state, 3 * self.ranks - 1
        projections = 2.0 * self.width * (sum(self.splits) + inner)
        chunk = min(CHUNK, micro * length)
        return projections + micro * (2.0 * chunk * (n * self.heads + inner) + 4.0 * n * inner)


class Mamba3State(NamedTuple):
    """The sums, the angles and the last token."""

    angle: Float[Array, "b h n"]
    """Running sum of pi tanh(angles) dt, modulo 2 pi, float32."""
    s: Float[Array, "b h k v"]
    """S, float32."""
    k: Float[Array, "b h r k"]
    """Turned keys of the last token, in the dtype given to `init_state`."""
    v: Float[Array, "b h v"]
    """x of the last token, likewise."""


class Mamba3(Mixer):
    """Mamba-3's block; the state has a fixed size, and `step` costs O(R d_state head_dim) per head.

    `in_proj` (d, sum of `splits`), `dt_bias`, `d` (heads,), `b_bias`, `c_bias` (heads, R, d_state), `b_norm.scale`,
    `c_norm.scale` (d_state,), with MIMO `mimo_x`, `mimo_z`, `mimo_o` (heads, R, head_dim), with `normalize`
    `norm.scale` (inner,), `out_proj` (inner, d).
    """

    config: Mamba3Config

    def __init__(self, config: Mamba3Config, *, rngs: nnx.Rngs) -> None:
        d, h, r, inner = config.width, config.heads, config.ranks, config.inner
        self.in_proj: nnx.Linear = linear(d, sum(config.splits), axes=("embed", "heads"), std=config.std, rngs=rngs)
        self.dt_bias: nnx.Param[jax.Array] = dt_bias_parameter(h, floor=1e-4, rngs=rngs)
        ones = lambda *shape: jnp.ones(shape, jnp.float32)  # noqa: E731
        per_head = ("heads", None, None)
        self.b_bias: nnx.Param[jax.Array] = parameter(ones(h, r, config.d_state), per_head, decay=False)
        self.c_bias: nnx.Param[jax.Array] = parameter(ones(h, r, config.d_state), per_head, decay=False)
        self.b_norm: GatedNorm = GatedNorm(config.d_state, eps=config.norm_eps)
        self.c_norm: GatedNorm = GatedNorm(config.d_state, eps=config.norm_eps)
        self.d: nnx.Param[jax.Array] = parameter(ones(h), ("heads",), decay=False)
        if config.rank is not None:
            start = ones(h, r, config.head_width)
            self.mimo_x: nnx.Param[jax.Array] = parameter(start / r, per_head, decay=False)
            self.mimo_z: nnx.Param[jax.Array] = parameter(start, per_head, decay=False)
            self.mimo_o: nnx.Param[jax.Array] = parameter(start / r, per_head, decay=False)
        if config.normalize:
            self.norm: GatedNorm = GatedNorm(inner, eps=config.norm_eps, groups=h, axis="heads")
        self.out_proj: nnx.Linear = linear(inner, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> Mamba3State:
        """Zeros. Angles and sums are float32 whatever `dtype` says."""
        config, h = self.config, self.config.heads
        return Mamba3State(
            jnp.zeros((batch_size, h, config.n_angles), jnp.float32),
            jnp.zeros((batch_size, h, config.d_state, config.head_width), jnp.float32),
            jnp.zeros((batch_size, h, config.ranks, config.d_state), dtype),
            jnp.zeros((batch_size, h, config.head_width), dtype),
        )

    def mix(self, x: Float[Array, "*b d"], state: Mamba3State | None, context: Context) -> tuple[Array, Mamba3State]:
        config, h = self.config, self.config.heads
        before = self.init_state(x.shape[0], dtype=x.dtype) if state is None else state
        u = x[:, None] if x.ndim == 2 else x
        parts = jnp.split(self.in_proj(u), np.cumsum(config.splits)[:-1].tolist(), axis=-1)
        z, v, b, c, dt, a, trapezoid, angles = parts
        z, v = split_heads(z, h), split_heads(v, h)
        dt, a = time_step(dt, self.dt_bias[...]), a.astype(jnp.float32)
        heavy_tail = jnp.maximum(a, 0) + 1 / (1 - jnp.minimum(a, 0))
        rate = jax.nn.softplus(a) if config.activation == "softplus" else heavy_tail
        log_decay = -jnp.maximum(rate, 1e-4) * dt
        angle = _turned(dt[..., None] * math.pi * jnp.tanh(angles.astype(jnp.float32))[..., None, :], before.angle)
        q = self._rotate(self.c_norm(self._by_rank(c)), self.c_bias[...], angle)
        k = self._rotate(self.b_norm(self._by_rank(b)), self.b_bias[...], angle)
        share = jax.nn.sigmoid(trapezoid.astype(jnp.float32))
        own, past = share * dt, (1 - share) * dt * jnp.exp(log_decay)
        # With the last token before them in front; there may be no token.
        angles, keys, values = (
            jnp.concatenate([last[:, None].astype(y.dtype), y], axis=1)
            for last, y in ((before.angle, angle), (before.k, k), (before.v, v))
        )
        starts = document_starts(context.segment_ids)
        if starts is not None:
            past = jnp.where(starts[..., None], 0.0, past)
        y, s = self._read(
            before.s, q, (k, v, own), (keys[:, :-1], values[:, :-1], past), log_decay, context.segment_ids
        )
        y = self._merge(y, v, z).reshape(*u.shape[:-1], config.inner)
        last_k, last_v = keys[:, -1].astype(before.k.dtype), values[:, -1].astype(before.v.dtype)
        after = Mamba3State(angles[:, -1], s, last_k, last_v)
        return self.out_proj(y[:, 0] if x.ndim == 2 else y), after

    def _by_rank(self, x: Float[Array, "b t rgk"]) -> Float[Array, "b t h r k"]:
        """B or C by head and rank."""
        config = self.config
        x = x.reshape(*x.shape[:2], config.ranks, config.n_groups, config.d_state)
        return jnp.repeat(x, config.heads // config.n_groups, axis=3).swapaxes(2, 3)

    def _rotate(
        self, x: Float[Array, "b t h r k"], bias: Float[Array, "h r k"], angle: Float[Array, "b t h n"]
    ) -> Float[Array, "b t h r k"]:
        """x + bias, its pairs of channels turned."""
        wide = x.astype(jnp.float32) + bias[None, None]
        half = self.config.d_state // 2
        angle = jnp.pad(angle, [(0, 0)] * 3 + [(0, half - angle.shape[-1])])[..., None, :]
        axis = -2 if self.config.rank else -1
        pairs = wide.reshape(*x.shape[:-1], *((2, half) if self.config.rank else (half, 2)))
        first, second = (jnp.squeeze(y, axis) for y in jnp.split(pairs, 2, axis=axis))
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        turned = jnp.stack([first * cos - second * sin, first * sin + second * cos], axis=axis)
        return turned.reshape(x.shape).astype(x.dtype)

    def _values(self, v: Float[Array, "b t h v"]) -> Float[Array, "b t h r v"]:
        """v_r of the module docstring."""
        v = v[..., None, :]
        return v * along_last(self.mimo_x[...], v) if self.config.rank else v

    def _read(
        self, s: Array, q: Array, own: tuple, last: tuple, log_decay: Array, ids: Array | None
    ) -> tuple[Float[Array, "b t h r v"], Array]:
        """Outputs by rank, and the state after them: each token is 3 R - 1 tokens of linear attention, which write the
        last token's keys, write its own, and read; the first of them decays the state."""
        r, (b, t, h, _) = self.config.ranks, own[1].shape
        keys, values = (
            jnp.concatenate([f(y) for y in (last, own)], axis=3)
            for f in (lambda y: y[2][..., None, None].astype(q.dtype) * y[0], lambda y: self._values(y[1]))
        )
        rest = lambda y, first, then: jnp.pad(y, [(0, 0)] * 3 + [(first, then), (0, 0)])  # noqa: E731
        tokens = [rest(q, 2 * r - 1, 0), rest(keys, 0, r - 1), rest(values, 0, r - 1)]
        decays = rest(log_decay[..., None, None], 0, 3 * r - 2)
        q, k, v, decays = (y.swapaxes(2, 3).reshape(b, t * (3 * r - 1), h, y.shape[-1]) for y in (*tokens, decays))
        ids = None if ids is None else jnp.repeat(ids, 3 * r - 1, axis=1)
        with recording(None):
            options = {"log_decay": decays[..., 0], "segment_ids": ids, "initial_state": LinearState(s, None)}
            y, after = linear_attention(q, k, v, **options)
        return y.reshape(b, t, 3 * r - 1, h, y.shape[-1]).swapaxes(2, 3)[..., 2 * r - 1 :, :], after.s

    def _merge(
        self, y: Float[Array, "b t h r v"], v: Float[Array, "b t h v"], z: Float[Array, "b t h v"]
    ) -> Float[Array, "b t h v"]:
        """Adds the skip, normalizes, gates, and sums over the ranks."""
        y = y + along_last(self.d[...][:, None, None], y) * self._values(v)
        z = z[..., None, :]
        z = z * along_last(self.mimo_z[...], z) if self.config.rank else z
        if self.config.normalize:
            flat = lambda x: x.swapaxes(2, 3).reshape(*x.shape[:2], x.shape[3], self.config.inner)  # noqa: E731
            normed = self.norm(flat(y), flat(z))
            y = normed.reshape(*y.shape[:2], y.shape[3], y.shape[2], y.shape[4]).swapaxes(2, 3)
        else:
            y = y * jax.nn.silu(z)
        return (y * along_last(self.mimo_o[...], y) if self.config.rank else y).sum(3)


def _turned(steps: Float[Array, "b t h n"], start: Float[Array, "b h n"]) -> Float[Array, "b t h n"]:
    """Running sums modulo 2 pi, which keeps their digits in long sequences."""
    if steps.shape[1] == 0:
        return steps
    add = lambda a, b: jnp.mod(a + b, np.float32(2 * math.pi))  # noqa: E731
    return add(jax.lax.associative_scan(add, steps, axis=1), start[:, None])
