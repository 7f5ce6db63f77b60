"""residual_norm in plain XLA, with float32 statistics."""

import jax
import jax.numpy as jnp


def forward(x, y, scale, bias, *, options) -> tuple[jax.Array, jax.Array, None]:
    """Forward pass (contract in `api.py`), which saves nothing."""
    r = x if y is None else (x.astype(jnp.float32) + y.astype(jnp.float32)).astype(x.dtype)
    normed, _ = _normed(r, options)
    n = normed * scale.astype(jnp.float32)[None, None]
    if bias is not None:
        n += bias.astype(jnp.float32)[None, None]
    return r, n.astype(options.dtype), None


def backward(x, y, scale, bias, r, saved, dr, dn, *, options) -> tuple:
    """Gradients of `forward`: `dx = dr + (g - mean(g) - n mean(g n)) / std` with the normed n and g = scale dn."""
    del x, y, saved
    normed, rate = _normed(r, options)
    dn = dn.astype(jnp.float32)
    g = dn * scale.astype(jnp.float32)[None, None]
    d_normed = g - normed * jnp.mean(g * normed, axis=-1, keepdims=True)
    if options.centred:
        d_normed -= jnp.mean(g, axis=-1, keepdims=True)
    dx = d_normed * rate + dr.astype(jnp.float32)
    return (
        dx.astype(r.dtype),
        dx.astype(options.branch_dtype) if options.branch_dtype else None,
        jnp.sum(dn * normed, axis=(0, 1)).astype(scale.dtype),
        None if bias is None else jnp.sum(dn, axis=(0, 1)).astype(bias.dtype),
    )


def _normed(r: jax.Array, options) -> tuple[jax.Array, jax.Array]:
    """`(r - mean) / std` and `1 / std` (b, t, 1), float32."""
    r = r.astype(jnp.float32)
    if options.centred:
        r = r - jnp.mean(r, axis=-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(r), axis=-1, keepdims=True) + options.eps)
    return r * rate, rate
