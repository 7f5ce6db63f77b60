"""Reference of sliding-window attention: scores of all pairs of tokens, masked to the window.

    y_i = sum_j softmax_j(scale q_i.k_j) v_j,   j in the window of i          (Based, sec. 4.2)

float64 inputs are computed in float64 (under `jax.enable_x64`), others in float32. Differentiable to any order in
forward and reverse mode; O(t^2) memory."""

import jax
import jax.numpy as jnp
import numpy as np


def attention(q, k, v, start, segment_ids, *, window: int, scale: float) -> jax.Array:
    """y (b, t, h, v) in the dtype of v; arguments: see `api.py`."""
    (t, h), s, dtype = q.shape[1:3], k.shape[1], v.dtype
    wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
    q, k, v = q.astype(wide), *(jnp.repeat(x.astype(wide), h // x.shape[2], axis=2) for x in (k, v))
    distance = np.arange(s - t, s)[:, None] - np.arange(s)[None, :]
    seen = jnp.asarray((distance >= 0) & (distance < window))[None]
    if start is not None:
        seen = seen & (np.arange(s, dtype=np.int32)[None, :] >= start[:, None])[:, None, :]
    if segment_ids is not None:
        seen = seen & (segment_ids[:, s - t :, None] == segment_ids[:, None, :])
    scores = scale * jnp.einsum("bihk,bjhk->bhij", q, k, precision=jax.lax.Precision.HIGHEST)
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf))
    return jnp.einsum("bhij,bjhv->bihv", weights, v, precision=jax.lax.Precision.HIGHEST).astype(dtype)
