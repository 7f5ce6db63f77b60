"""Shift SSM of H3 (Fu et al. 2023): a register of `w` inputs per channel.

    x_i = shift(x_{i-1}) + B u_i        y_i = C . x_i

`shift` moves each entry by one place: with B = e_1 the register holds the last `w` inputs, newest first. So y is the
causal convolution of u with the correlation of B and C, taps_a = sum_m B_m C_{m+a}. All arrays are (w, d).
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.layers.causal_conv import causal_conv
from jaxzoo.utils.array_typing import Array, Float, Int


def shift_conv(
    u: Float[Array, "b t d"], b: Float[Array, "w d"], c: Float[Array, "w d"], *, segment_ids: Int[Array, "b t"] | None
) -> Float[Array, "b t d"]:
    """Outputs from an empty register, in the dtype of `u`."""
    return causal_conv(u, _correlate(b, c), segment_ids=segment_ids)


def shift_prefill(
    u: Float[Array, "b t d"], b: Float[Array, "w d"], c: Float[Array, "w d"], register: Float[Array, "b w d"]
) -> tuple[Float[Array, "b t d"], Float[Array, "b w d"]]:
    """Outputs and final register, float32, of `t >= 0` inputs from any register."""
    t, w = u.shape[1], b.shape[0]
    if t == 0:
        return u, register
    dtype, u, kept = u.dtype, u.astype(jnp.float32), max(w - t, 0)
    old = jnp.pad(_correlate(register, c[None])[:, 1 : t + 1], ((0, 0), (0, max(t - w + 1, 0)), (0, 0)))
    y = causal_conv(u, _correlate(b, c)) + old
    latest = jnp.pad(u[:, : -w - 1 : -1], ((0, 0), (0, kept), (0, 0)))
    moved = jnp.pad(register[:, :kept], ((0, 0), (w - kept, 0), (0, 0)))
    return y.astype(dtype), causal_conv(latest, b) + moved


def shift_step(
    u: Float[Array, "b d"], b: Float[Array, "w d"], c: Float[Array, "w d"], register: Float[Array, "b w d"]
) -> tuple[Float[Array, "b d"], Float[Array, "b w d"]]:
    """One step of `shift_prefill`, O(w) per channel."""
    moved = jnp.pad(register[:, :-1], ((0, 0), (1, 0), (0, 0)))
    register = moved + b[None] * u.astype(jnp.float32)[:, None]
    return (c[None] * register).sum(1).astype(u.dtype), register


def _correlate(x: jax.Array, c: jax.Array) -> jax.Array:
    """`sum_m x_m c_{m+a}` for a = 0 .. w - 1, over the axis before the last."""
    w, axis = c.shape[-2], c.ndim - 2
    x, c = (each.astype(np.promote_types(each.dtype, np.float32)) for each in (x, c))
    spectrum = jnp.fft.rfft(x, n=2 * w, axis=axis).conj() * jnp.fft.rfft(c, n=2 * w, axis=axis)
    return jax.lax.slice_in_dim(jnp.fft.irfft(spectrum, n=2 * w, axis=axis), 0, w, axis=axis)
