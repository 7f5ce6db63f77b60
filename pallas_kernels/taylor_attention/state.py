"""The recurrent state that every implementation reads and writes, and the converters to the full features."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention.features import full_to_symmetric, n_features, symmetric_to_full


class TaylorState(NamedTuple):
    """Sums over the past for every query head, also where key/value heads are shared. `phi`: `features.py`."""

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
    """The inverse of `state_to_full`, for example for a state of a code that keeps all k^2 products."""
    return TaylorState(full_to_symmetric(state.s, k=k_dim, axis=2), full_to_symmetric(state.z, k=k_dim, axis=2))
