"""References of Taylor attention: all pairs of tokens, and token by token with the full features.

    s_ij = scale * q_i.k_j        w_ij = decay^(i-j) (1 + s_ij + s_ij^2/2), j <= i
    y_i = (sum_j w_ij v_j + decay^(i+1) phi'(q_i) S) / (sum_j w_ij + decay^(i+1) phi'(q_i).z + eps)

(Based, sec. 3.1 and eqs. 2-4; decay: App. C; S, z: sums over tokens before the call; phi, phi' = coefficients * phi:
`features.py`.) float64 inputs are computed in float64 (under `jax.enable_x64`), others in float32. Differentiable to
any order in forward and reverse mode; O(t^2) memory.

With segment_ids (b, t), w_ij = 0 unless tokens j to i have the same id. S and z belong to the first token's document,
the returned state to the last token's."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.taylor_attention.features import (
    feature_map,
    full_to_symmetric,
    n_features,
    query_feature_map,
    symmetric_to_full,
)
from pallas_kernels.taylor_attention.state import TaylorState


def quadratic(q, k, v, *, scale, eps, normalize, initial_state=None, decay=None, segment_ids=None):
    """q (b, t, h, k), k (b, t, g, k), v (b, t, g, v), decay (h,) -> y (b, t, h, v) in v.dtype, `TaylorState`."""
    t, dtype = q.shape[1], v.dtype
    (q, k, v), (s, z), decay = _prepare(q, k, v, initial_state, decay)
    index = np.arange(t)
    distance = index[:, None] - index[None, :]
    scores = scale * _einsum("bihk,bjhk->bhij", q, k)
    meet, in_first, in_last, one = _documents(q, segment_ids)
    kept = jnp.where(((distance >= 0)[None] & meet)[:, None], _powers(decay, np.maximum(distance, 0))[None], 0)
    weights = (1 + scores + scores**2 / 2) * kept
    past = query_feature_map(q, scale) * _powers(decay, index + 1).T[None, :, :, None]
    past = jnp.where(in_first[:, :, None, None], past, 0)
    num = _einsum("bhij,bjhv->bihv", weights, v) + _einsum("bihf,bhfv->bihv", past, s)
    den = weights.sum(-1).swapaxes(1, 2) + _einsum("bihf,bhf->bih", past, z)
    y = num / (den + eps)[..., None] if normalize else num
    features = feature_map(k) * _powers(decay, t - 1 - index).T[None, :, :, None]
    features = jnp.where(in_last[:, :, None, None], features, 0)
    gone = jnp.where(one[:, None], _powers(decay, np.array([t]))[None], 0)
    s = s * gone[..., None] + _einsum("bjhf,bjhv->bhfv", features, v)
    return y.astype(dtype), TaylorState(s, z * gone + features.sum(1))


def recurrence(q, k, v, *, scale, eps, normalize, initial_state=None, decay=None, segment_ids=None):
    """Equals `quadratic`, token by token with all 1 + k + k^2 features; a document starts from zeros."""
    k_dim, dtype = q.shape[3], v.dtype
    (q, k, v), state, decay = _prepare(q, k, v, initial_state, decay)
    weights = np.repeat([1.0, scale, scale**2 / 2], [1, k_dim, k_dim**2]).astype(q.dtype)

    def full(x):
        products = x[..., :, None] * x[..., None, :]
        return jnp.concatenate([jnp.ones_like(x[..., :1]), x, products.reshape(*x.shape[:2], -1)], axis=-1)

    def token(state, inputs):
        q, k, v, starts = inputs
        kept = jnp.where(starts[:, None], 0, decay[None])[..., None]
        s = state.s * kept[..., None] + _einsum("bhf,bhv->bhfv", full(k), v)
        z = state.z * kept + full(k)
        read = full(q) * weights[None, None]
        y, den = _einsum("bhf,bhfv->bhv", read, s), _einsum("bhf,bhf->bh", read, z)
        return TaylorState(s, z), y / (den + eps)[..., None] if normalize else y

    state = jax.tree.map(lambda x: symmetric_to_full(x, k=k_dim, axis=2), state)
    inputs = q, k, v, _document_starts(q, segment_ids)
    state, y = jax.lax.scan(token, state, jax.tree.map(lambda x: x.swapaxes(0, 1), inputs))
    state = jax.tree.map(lambda x: full_to_symmetric(x, k=k_dim, axis=2), state)
    return y.swapaxes(0, 1).astype(dtype), state


def _prepare(q, k, v, state, decay):
    """Converts dtypes, repeats key/value heads, and replaces None by zeros or ones."""
    (b, _, h, k_dim), v_dim = q.shape, v.shape[3]
    dtype = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
    q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
    k, v = (jnp.repeat(x, h // x.shape[2], axis=2) for x in (k, v))
    if state is None:
        shape = (b, h, n_features(k_dim))
        state = TaylorState(jnp.zeros((*shape, v_dim), dtype), jnp.zeros(shape, dtype))
    state = TaylorState(*(jnp.asarray(x, dtype) for x in state))
    return (q, k, v), state, jnp.ones(h, dtype) if decay is None else jnp.asarray(decay, dtype)


def _documents(q, segment_ids):
    """Masks: tokens i, j in the same document (b, t, t), tokens of the first and of the last document (b, t), rows with
    a single document (b, 1); without ids, b and t are 1."""
    if segment_ids is None:
        return np.ones((1, 1, 1), bool), *[np.ones((1, 1), bool)] * 3
    starts = _document_starts(q, segment_ids)
    document, last = jnp.cumsum(starts, axis=1, dtype=jnp.int32), starts.sum(1, dtype=jnp.int32)[:, None]
    return document[:, :, None] == document[:, None], document == 0, document == last, last == 0


def _document_starts(q, segment_ids):
    """Mask of tokens whose id differs from the previous token's, (b, t)."""
    if segment_ids is None:
        return jnp.zeros(q.shape[:2], bool)
    return jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0


def _powers(decay, exponents):
    """(h,), (...) integers -> decay ** exponents, (h, ...)."""
    exponents = exponents.astype(decay.dtype)[None]
    return decay.reshape(-1, *[1] * (exponents.ndim - 1)) ** exponents


def _einsum(spec, x, y):
    return jnp.einsum(spec, x, y, precision=jax.lax.Precision.HIGHEST)
