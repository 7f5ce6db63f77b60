"""Reference of residual_norm, by the definitions of mean and variance."""

import jax
import jax.numpy as jnp


def residual_norm(x, y, scale, *, bias=None, eps, centred=False, dtype=None):
    """The equations of `api.py`, in float64 for float64 inputs (under `jax.enable_x64`), else in float32.

    Differentiable to any order in forward and reverse mode. Arguments and results: see `api.residual_norm`.
    """
    wide = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    r = x.astype(wide) if y is None else x.astype(wide) + y.astype(wide)
    mean = jnp.mean(r, axis=-1, keepdims=True) if centred else jnp.zeros_like(r[..., :1])
    variance = jnp.mean((r - mean) ** 2, axis=-1, keepdims=True)
    n = (r - mean) / jnp.sqrt(variance + eps) * scale.astype(wide)[None, None]
    if bias is not None:
        n += bias.astype(wide)[None, None]
    return r.astype(x.dtype), n.astype(jax.dtypes.canonicalize_dtype(dtype or (x if y is None else y).dtype))
