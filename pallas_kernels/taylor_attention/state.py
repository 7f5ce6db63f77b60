"""Recurrent state of Taylor attention: its type, the decode step, conversion to full features."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention.features import (
    feature_map,
    full_to_symmetric,
    n_features,
    query_feature_map,
    symmetric_to_full,
)


class TaylorState(NamedTuple):
    """Sums over past tokens for every query head, even if key/value heads are shared. `phi`: `features.py`."""

    s: jax.Array
    """(b, h, features, v) float32: sum_j decay^(i-j) phi(k_j) v_j^T after token i."""
    z: jax.Array
    """(b, h, features) float32: sum_j decay^(i-j) phi(k_j); its first entry is the decayed count of tokens."""


def empty_state(batch_size: int, n_heads: int, k_dim: int, v_dim: int) -> TaylorState:
    """The state before the first token: zeros."""
    shape = (batch_size, n_heads, n_features(k_dim))
    return TaylorState(s=jnp.zeros((*shape, v_dim), jnp.float32), z=jnp.zeros(shape, jnp.float32))


def state_to_full(state: TaylorState, k_dim: int) -> TaylorState:
    """The state over the 1 + k + k^2 features [1, x_a, x_a x_b for all a, b]: pairs copied, exact."""
    return TaylorState(symmetric_to_full(state.s, k=k_dim, axis=2), symmetric_to_full(state.z, k=k_dim, axis=2))


def state_from_full(state: TaylorState, k_dim: int) -> TaylorState:
    """The inverse of `state_to_full`."""
    return TaylorState(full_to_symmetric(state.s, k=k_dim, axis=2), full_to_symmetric(state.z, k=k_dim, axis=2))


def taylor_attention_step(
    state: TaylorState,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    decay: jax.Array | None = None,
) -> tuple[jax.Array, TaylorState]:
    """One decode step (Based, eq. 3 and Alg. 2): 4 features v operations per head.

    Equals `taylor_attention` with t = 1; q (b, h, k), k (b, g, k), v (b, g, v); other arguments are the same. XLA on
    every platform; donate the state (`jax.jit(..., donate_argnums=0)`) to update it in place. Returns y (b, h, v) in
    the dtype of v, and the state.
    """
    q_shape, k_shape, v_shape = ((x.shape[0], 1, *x.shape[1:]) for x in (q, k, v))
    check_shapes(q_shape, k_shape, v_shape, decay, state)
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    group = q.shape[1] // k.shape[1]
    k, v_heads = (jnp.repeat(x.astype(jnp.float32), group, axis=1) for x in (k, v))
    features, (s, z) = feature_map(k), state
    if decay is not None:
        kept = jax.lax.stop_gradient(jnp.asarray(decay, jnp.float32))
        s, z = s * kept[None, :, None, None], z * kept[None, :, None]
    s = s + features[..., :, None] * v_heads[..., None, :]
    z = z + features
    # Matrix products could round float32 to tf32 or bfloat16.
    read = query_feature_map(q.astype(jnp.float32), factor)
    y = (read[..., :, None] * s).sum(2)
    if normalize:
        y = y / ((read * z).sum(2) + eps)[..., None]
    return y.astype(v.dtype), TaylorState(s, z)


def check_shapes(q: tuple, k: tuple, v: tuple, decay, state: TaylorState | None) -> None:
    """Raises ValueError unless arrays of these shapes, decays and a state fit together."""
    if not len(q) == len(k) == len(v) == 4:
        raise ValueError(f"taylor_attention: q, k, v of shapes {q}, {k}, {v} must be (b, t, heads, width)")
    (b, t, h, k_dim), g = q, k[2]
    if k != (b, t, g, k_dim) or v[:3] != (b, t, g):
        raise ValueError(
            f"taylor_attention: q, k, v of shapes {q}, {k}, {v} must share batch and "
            "time, q and k their width, k and v their heads"
        )
    if g == 0 or h % g:
        raise ValueError(f"taylor_attention: {h} query heads must be a multiple of {g} key/value heads")
    if decay is not None and decay.shape != (h,):
        raise ValueError(f"taylor_attention: decay of shape {decay.shape} must have one entry a query head, ({h},)")
    expected = (b, h, n_features(k_dim))
    if state is not None and (state.z.shape != expected or state.s.shape != (*expected, v[3])):
        raise ValueError(
            f"taylor_attention: state of shapes s={state.s.shape}, z={state.z.shape} "
            f"must be s={(*expected, v[3])}, z={expected}; make it with empty_state"
        )
