"""S4D (Gu et al. 2022): a state space model with a diagonal, complex A per channel.

    x'(t) = A x(t) + B u(t)        y(t) = 2 Re(sum_n C_n x_n(t))

States come in conjugate pairs, of which one is stored: `d_state` real numbers are `d_state / 2` complex ones. With the
channel's step dt and s = dt A, the discrete recurrence is x_i = a x_{i-1} + b u_i:

| `Discretization` | a                         | b                  |
| ---------------- | ------------------------- | ------------------ |
| bilinear         | (1 + s / 2) / (1 - s / 2) | dt B / (1 - s / 2) |
| zoh              | exp(s)                    | B (exp(s) - 1) / A |

and the convolution kernel is K_l = 2 Re(sum_n C_n a_n^l b_n). Parameters are log(-Re A), Im A, log dt, and the real and
imaginary parts of B and C; all but C have no weight decay, as in the authors' code.

Initialisation, for n = 0 .. d_state / 2 - 1: Re A = -1/2; Im A = pi n (S4D-Lin, `lin`) or
d_state / pi (d_state / (2 n + 1) - 1) (S4D-Inv, `inv`); B = 1; C complex normal of variance 1; dt log-uniform in
[dt_min, dt_max].

A power a^l is the product of a^(i c) and a^j with l = i c + j, from two tables of about sqrt(t) powers. So no array
(channels, n, t) of all powers exists, and sums over n are matrix products.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.tree_util import Partial

from jaxzoo.layers.causal_conv import causal_conv
from jaxzoo.layers.variables import parameter
from jaxzoo.parallel.sequence_parallel import scan_in_parts
from jaxzoo.parallel.sharding import sequence_devices
from jaxzoo.utils.array_typing import Array, Float, Int

Discretization = Literal["bilinear", "zoh"]
Spectrum = Literal["lin", "inv"]


class Discrete(NamedTuple):
    """Discrete system per channel, complex64."""

    a: Array  # (channels, n)
    b: Array  # (channels, n)
    c: Array  # (channels, n)


class S4D(nnx.Module):
    """Parameters of S4D: `log_dt` (channels,), `log_neg_real`, `imag` (channels, n), `b`, `c` (channels, n, 2), n =
    d_state / 2."""

    def __init__(
        self,
        channels: int,
        *,
        d_state: int,
        spectrum: Spectrum = "lin",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        axes: tuple[str | None, ...] = ("channels",),
        rngs: nnx.Rngs,
    ) -> None:
        shape = (channels, d_state // 2)
        log_dt = jax.random.uniform(rngs.params(), shape[:1], jnp.float32, math.log(dt_min), math.log(dt_max))
        n = np.arange(d_state // 2)
        frequencies = np.pi * n if spectrum == "lin" else d_state / np.pi * (d_state / (2 * n + 1) - 1)
        imag = jnp.tile(jnp.asarray(frequencies.astype(np.float32))[None], (channels, 1))
        matrix = (*axes, None)
        self.log_dt: nnx.Param[jax.Array] = parameter(log_dt, axes, decay=False)
        self.log_neg_real: nnx.Param[jax.Array] = parameter(jnp.full(shape, math.log(0.5)), matrix, decay=False)
        self.imag: nnx.Param[jax.Array] = parameter(imag, matrix, decay=False)
        self.b: nnx.Param[jax.Array] = parameter(
            jnp.stack([jnp.ones(shape), jnp.zeros(shape)], axis=-1), (*matrix, None), decay=False
        )
        self.c: nnx.Param[jax.Array] = parameter(
            math.sqrt(0.5) * jax.random.normal(rngs.params(), (*shape, 2)), (*matrix, None)
        )

    def __call__(self, discretization: Discretization) -> Discrete:
        """Discretizes the parameters."""
        a = lax.complex(-jnp.exp(self.log_neg_real[...]), self.imag[...])
        b, c = as_complex(self.b[...]), as_complex(self.c[...])
        dt = jnp.exp(self.log_dt[...])[:, None].astype(a.dtype)
        s = dt * a
        if discretization == "zoh":
            return Discrete(jnp.exp(s), b * jnp.expm1(s) / a, c)
        return Discrete((1 + s / 2) / (1 - s / 2), dt * b / (1 - s / 2), c)


def as_complex(x: Float[Array, "... 2"]) -> Array:
    """Real and imaginary part in the last axis -> complex64."""
    x = x.astype(np.promote_types(x.dtype, np.float32))
    return lax.complex(x[..., 0], x[..., 1])


def as_pair(x: Array) -> Float[Array, "... 2"]:
    """complex64 -> real and imaginary part in the last axis."""
    return jnp.stack([x.real, x.imag], axis=-1)


def s4d_conv(
    u: Float[Array, "b t d"], system: Discrete, *, segment_ids: Int[Array, "b t"] | None = None
) -> Float[Array, "b t d"]:
    """Outputs from a zero state, in the dtype of `u`; O(t (log t + n)) per channel."""
    if u.shape[1] == 0:
        return u
    if sequence_devices(u.shape[1]) > 1:
        zeros = jnp.zeros((u.shape[0], *system.a.shape), system.a.dtype)
        return _in_parts(u, system, segment_ids, zeros)[0]
    return causal_conv(u, s4d_kernel(system, u.shape[1]), segment_ids=segment_ids)


def s4d_kernel(system: Discrete, length: int) -> Float[Array, "w d"]:
    """First `length` taps `K_l`."""
    far, near = _tables(system.a, length)
    weighted = (system.b * system.c)[..., None] * far
    return 2 * _real_of_product(weighted, near, length).T


def s4d_prefill(
    u: Float[Array, "b t d"], system: Discrete, state: Float[Array, "b d n 2"]
) -> tuple[Float[Array, "b t d"], Float[Array, "b d n 2"]]:
    """Outputs and final state, float32, of `t >= 0` inputs from any state; stores no intermediate states."""
    if u.shape[1] == 0:
        return u, state
    y, after = _in_parts(u, system, None, as_complex(state))
    return y, as_pair(after)


def _in_parts(u: jax.Array, system: Discrete, segment_ids: jax.Array | None, state: jax.Array) -> tuple[Array, Array]:
    """Outputs and final state, complex64; if time is sharded, devices exchange only states."""
    run, kept = Partial(_from_state, system), Partial(_kept, system)
    return scan_in_parts(run, kept, u, segment_ids, state, jnp.zeros_like(state))


def _kept(system: Discrete, u: Float[Array, "b t d"]) -> Array:
    """Decay of the state over `t` inputs, (1, d, n)."""
    return _power(system.a, u.shape[1])[None]


def _from_state(
    system: Discrete, u: Float[Array, "b t d"], segment_ids: Int[Array, "b t"] | None, before: Array
) -> tuple[Float[Array, "b t d"], Array]:
    """Outputs and final state of `t > 0` inputs, the first of which continue the document of the given state."""
    t = u.shape[1]
    far, near = _tables(system.a, t)
    weighted = (system.a * system.c)[None] * before  # C a^(l + 1) x_{-1}
    y = 2 * _real_of_product(weighted[..., None] * far[None], near, t).swapaxes(1, 2)
    dtype, u = u.dtype, u.astype(jnp.float32)
    if segment_ids is not None:
        y = jnp.where((segment_ids == segment_ids[:, :1])[..., None], y, 0.0)
    y = (causal_conv(u, s4d_kernel(system, t), segment_ids=segment_ids) + y).astype(dtype)
    if segment_ids is not None:
        last = segment_ids == segment_ids[:, -1:]
        u = jnp.where(last[..., None], u, 0.0)
        before = jnp.where(last[:, :1, None], before, 0.0)

    # sum_l a^l u_{t-1-l}: over l in i c .. (i + 1) c, then over i.
    blocks, size = far.shape[-1], near.shape[-1]
    latest = jnp.pad(u[:, ::-1], ((0, 0), (0, blocks * size - t), (0, 0)))
    latest = latest.swapaxes(1, 2).reshape(u.shape[0], u.shape[2], blocks, size)
    inner = as_complex(jnp.einsum("bdij,dnjz->bdinz", latest, as_pair(near), precision=lax.Precision.HIGHEST))
    added = (inner.swapaxes(2, 3) * far[None]).sum(-1)
    return y, _power(system.a, t)[None] * before + system.b[None] * added


def s4d_step(
    u: Float[Array, "b d"], system: Discrete, state: Float[Array, "b d n 2"]
) -> tuple[Float[Array, "b d"], Float[Array, "b d n 2"]]:
    """One step of `s4d_prefill`, O(n) per channel."""
    x = system.a[None] * as_complex(state) + system.b[None] * u[..., None].astype(system.b.dtype)
    y = 2 * (system.c[None] * x).sum(-1).real
    return y.astype(u.dtype), as_pair(x)


def _tables(a: jax.Array, length: int) -> tuple[jax.Array, jax.Array]:
    """Tables `a^(i c)` (..., blocks) and `a^j` (..., c), whose products are the first `blocks c >= length` powers."""
    size = 1 << (math.isqrt(length - 1).bit_length() if length > 1 else 0)
    blocks = -(-length // size)
    return _powers(_power(a, size), blocks), _powers(a, size)


def _powers(a: jax.Array, count: int) -> jax.Array:
    """`a^0 .. a^(count - 1)` in a new last axis."""
    powers, step = jnp.ones((*a.shape, 1), a.dtype), a
    while powers.shape[-1] < count:
        powers = jnp.concatenate([powers, powers * step[..., None]], axis=-1)
        step = step * step
    return powers[..., :count]


def _power(a: jax.Array, exponent: int) -> jax.Array:
    """`a^exponent` by squaring."""
    result = jnp.ones_like(a)
    while exponent:
        result = result * a if exponent % 2 else result
        a, exponent = a * a, exponent // 2
    return result


def _real_of_product(far: jax.Array, near: jax.Array, length: int) -> jax.Array:
    """`Re sum_n far[n, i] near[n, j]` at `i c + j`: (..., d, n, blocks), (d, n, c) -> (..., d, length)."""
    left = jnp.concatenate([far.real, -far.imag], axis=-2)
    right = jnp.concatenate([near.real, near.imag], axis=-2)
    product = jnp.einsum("...dni,dnj->...dij", left, right, precision=lax.Precision.HIGHEST)
    *rows, blocks, tokens = product.shape
    return product.reshape(*rows, blocks * tokens)[..., :length]
