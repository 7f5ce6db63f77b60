"""MesaNet (von Oswald et al. 2025, arXiv 2506.05233): each output solves a regularized regression over the past.

With a convolution and SiLU for q and k, which are divided by their length, v = x W_v, and for every head
beta = sigmoid(x W_b + b_b), a = sigmoid(x W_a + b_a), lambda = softplus(Lambda) + 0.25 per channel of the keys:

    G_t = a_t G_{t-1} + beta_t k_t k_t^T        H_t = a_t H_{t-1} + beta_t k_t v_t^T
    o_t = H_t^T (G_t + diag(lambda))^-1 q_t        y = concat(rms(o_h)) W_O

without a factor 1 / sqrt(k). The system is solved by `n_steps` conjugate gradients for all tokens at once, each a
linear attention of k and beta k; the gradient solves a second system instead of going through the steps. As in
flash-linear-attention, they start from 0, and `eps` is added to the denominators of their two quotients, which keeps o
some 1e-3 from the exact solution; with `eps` of 1e-12 it is exact up to rounding.

Deviation: `step` starts from 0 as well, so that all forms agree; fla's decoding starts from q / (diag(G) + lambda).

fla's names: `a_proj` and `b_proj` (with biases) are `decay_proj` and `beta_proj`, `lambda_params` is `ridge`, `g_proj`
is `gate_proj`, `o_norm.weight` is `norm.scale`, `o_proj` is `out_proj`; `q_conv1d` and `k_conv1d` are joined in
`conv.taps`. Initialisation: lambda = 1, biases 0.

State: G and H, 2 k^2 numbers per head, and the last n_taps - 1 projected q and k.

Good at: Recall: the best linear read-out of all past keys and values, at several times the cost of a delta rule.
Paper: von Oswald et al. 2025, https://arxiv.org/abs/2506.05233
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveFloat, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import joint_linear, linear, split_heads
from jaxzoo.layers.probe import recording
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention_from
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MesaNetConfig(MixerConfig):
    """Config of `MesaNet`."""

    promises = Capabilities(segments=True)

    n_heads: PositiveInt = 1
    """Heads; the public code's have 128 channels each."""
    head_dim: PositiveInt | None = None
    """Width of a head; None: d_model / n_heads."""
    n_taps: PositiveInt = 4
    """Taps of the convolutions, the current token's included."""
    gate: bool = False
    """Multiplies the normalized heads by silu(x W_G)."""
    lambda_bound: NonNegativeFloat = 0.25
    """Smallest lambda."""
    n_steps: PositiveInt = 30
    """Conjugate gradients."""
    eps: PositiveFloat = 1e-5
    """Added to the denominators of a step."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in the norm of each head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("lambda_bound", self.lambda_bound < 1, "must be below 1, where lambda starts")
        if self.head_dim is None:
            self.require_divisible("d_model", by="n_heads")

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.n_heads * (self.head_dim or self.width // self.n_heads)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, head_dim=4, n_taps=3, gate=True, n_steps=6)

    def flops_per_token(self, length: int) -> float:
        """Projections and convolutions; per step scores of a chunk with keys, and the state written and read."""
        d, inner = self.width, self.inner
        projections = 2.0 * d * ((4 + self.gate) * inner + 2 * self.n_heads)
        attention = 4.0 * min(CHUNK, length) * inner + 4.0 * inner**2 / self.n_heads
        return projections + 2 * inner * conv_flops(self.n_taps, length) + (self.n_steps + 1) * attention


class MesaNetState(NamedTuple):
    """Shift register and sums."""

    history: Float[Array, "b w-1 d"]
    """The last `n_taps - 1` projected queries and keys, oldest first, in the dtype given to `init_state`."""
    kk: Float[Array, "b h k k"]
    """G of the module docstring, float32."""
    kv: Float[Array, "b h k v"]
    """H of the module docstring, float32."""


class MesaNet(Mixer):
    """Regression at each token; the state has a fixed size, and `step` costs O(n_steps k^2) per head.

    `q_proj`, `k_proj`, `v_proj` (d, inner), `decay_proj`, `beta_proj` (d, heads) with biases, `ridge` (heads, k),
    `conv.taps` (n_taps, 2 inner: q, k), `norm.scale` (v,), `gate_proj` (d, inner) with a gate, `out_proj` (inner, d).
    """

    config: MesaNetConfig

    def __init__(self, config: MesaNetConfig, *, rngs: nnx.Rngs) -> None:
        d, h, inner, std, axes = config.width, config.n_heads, config.inner, config.std, ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.decay_proj: nnx.Linear = linear(d, h, axes=axes, std=std, bias=True, rngs=rngs)
        self.beta_proj: nnx.Linear = linear(d, h, axes=axes, std=std, bias=True, rngs=rngs)
        start = math.log(math.expm1(1 - config.lambda_bound))
        ridge = jnp.full((h, inner // h), start, jnp.float32)
        self.ridge: nnx.Param[jax.Array] = parameter(ridge, ("heads", None), decay=False)
        self.conv: ShortConv = ShortConv(2 * inner, config.n_taps, bias=False, n_plain=0, axis="heads", rngs=rngs)
        if config.gate:
            self.gate_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.norm: GatedNorm = GatedNorm(inner // h, eps=config.norm_eps)
        self.out_proj: nnx.Linear = linear(inner, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> MesaNetState:
        """Zeros. The sums are float32 whatever `dtype` says."""
        h, inner = self.config.n_heads, self.config.inner
        sums = jnp.zeros((batch_size, h, inner // h, inner // h), jnp.float32)
        return MesaNetState(empty_history(batch_size, self.config.n_taps, 2 * inner, dtype), sums, sums)

    def mix(self, x: Float[Array, "*b d"], state: MesaNetState | None, context: Context) -> tuple[Array, MesaNetState]:
        config, ids, h = self.config, context.segment_ids, self.config.n_heads
        projected = joint_linear(x, self.q_proj, self.k_proj)
        convolved, history = self.conv(projected, None if state is None else state.history, segment_ids=ids)
        q, k = (_unit(split_heads(y, h)) for y in jnp.split(convolved, 2, axis=-1))
        v, log_decay = split_heads(self.v_proj(x), h), jax.nn.log_sigmoid(self.decay_proj(x).astype(jnp.float32))
        written = jax.nn.sigmoid(self.beta_proj(x).astype(jnp.float32))[..., None] * k
        ridge = jax.nn.softplus(self.ridge[...]) + config.lambda_bound
        kk, kv = (None, None) if state is None else (LinearState(y, None) for y in (state.kk, state.kv))
        system = _RidgeSystem(kk, k, written, log_decay, ridge, ids)
        with recording(None):
            solved = _solve(config.n_steps, config.eps, system, q)
            after_kk = _times(system, q)[1]
        read = {"log_decay": log_decay, "segment_ids": ids}
        o, after = linear_attention_from(kv, solved.astype(v.dtype), written.astype(v.dtype), v, **read)
        y = self.norm(o, split_heads(self.gate_proj(x), h) if config.gate else None)
        return self.out_proj(y.reshape(*x.shape[:-1], config.inner)), MesaNetState(history, after_kk, after.s)


class _RidgeSystem(NamedTuple):
    """The matrices G_t + diag(lambda) of all tokens, by what makes them."""

    before: LinearState | None
    k: Float[Array, "*b h k"]
    written: Float[Array, "*b h k"]
    log_decay: Float[Array, "*b h"]
    ridge: Float[Array, "h k"]
    ids: Int[Array, "b t"] | None


def _unit(x: Float[Array, "... k"]) -> Float[Array, "... k"]:
    """Vectors divided by their length, float32."""
    wide = x.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True) + np.float32(1e-6))


def _times(system: _RidgeSystem, p: Float[Array, "*b h k"]) -> tuple[Array, Array]:
    """The products of each token's matrix and vector, and G after the last token."""
    before, k, written, log_decay, ridge, ids = system
    y, after = linear_attention_from(before, p, k, written, log_decay=log_decay, segment_ids=ids)
    return y + ridge.reshape((1,) * (p.ndim - 2) + ridge.shape) * p, after.s


def _conjugate_gradients(
    times: Callable[[Array], Array], right: Float[Array, "... k"], n_steps: int, eps: float
) -> Float[Array, "... k"]:
    """x with `times(x)` = `right`, from x = 0, a system per vector."""
    dot = lambda a, b: (a * b).sum(-1, keepdims=True)  # noqa: E731

    def step(_: int, state: tuple) -> tuple:
        x, r, p, size = state
        product = times(p)
        alpha = size / (dot(p, product) + np.float32(eps))
        x, r = x + alpha * p, r - alpha * product
        new = dot(r, r)
        return x, r, r + new / (size + np.float32(eps)) * p, new

    start = (jnp.zeros_like(right), right, right, dot(right, right))
    return jax.lax.fori_loop(0, n_steps, step, start)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _solve(n_steps: int, eps: float, system: _RidgeSystem, right: Float[Array, "*b h k"]) -> Float[Array, "*b h k"]:
    """x of `(G_t + diag(lambda)) x = right` for each token."""
    return _conjugate_gradients(lambda p: _times(system, p)[0], right, n_steps, eps)


def _solve_forward(
    n_steps: int, eps: float, system: _RidgeSystem, right: Array
) -> tuple[Array, tuple[_RidgeSystem, Array]]:
    x = _solve(n_steps, eps, system, right)
    return x, (system, x)


def _solve_backward(
    n_steps: int, eps: float, kept: tuple[_RidgeSystem, Array], dx: Array
) -> tuple[_RidgeSystem, Array]:
    """With the symmetric matrix M, d right = M^-1 dx, and M has the derivative -(d right) x^T."""
    system, x = kept
    d_right = _conjugate_gradients(lambda p: _times(system, p)[0], dx, n_steps, eps)
    pull_back = jax.vjp(lambda system: _times(system, x)[0], system)[1]
    return pull_back(-d_right)[0], d_right


_solve.defvjp(_solve_forward, _solve_backward)
