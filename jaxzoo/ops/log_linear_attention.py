"""Log-linear attention (Guo et al. 2025, arXiv 2506.04761): linear attention with O(log t) states, of growing spans.

    y_i = sum_{j <= i} lambda_i[level(i, j)] (prod_{j < r <= i} a_r) (q_i . k_j) v_j

The level of a pair is that of the Fenwick tree (sec. 3.1): 0 for the token itself, otherwise 1 + the highest binary
digit in which the positions i and j differ. So the past of position i consists of one run of 2^(l-1) tokens per nonzero
binary digit of i, the shortest next to i, and one state per run suffices. As positions grow, runs only merge.

The last level also holds all longer runs: the result is the paper's up to 2^(n_levels - 1) tokens; beyond, the oldest
tokens share one lambda. With the same lambda for all levels it is `linear_attention`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.utils.array_typing import Array, Float, Int

CHUNK = 64
"""Chunk length."""


class LogLinearState(NamedTuple):
    """Sums over the runs of the past, and the position."""

    s: Float[Array, "b levels h k v"]
    """Decayed sums of `k_j v_j^T` of levels 1 and above, float32."""
    place: Int[Array, "b"]
    """Tokens seen, int32: the position of the next one."""


def naive_log_linear_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    log_decay: Float[Array, "b t h"],
    scales: Float[Array, "b t h levels"],
) -> Float[Array, "b t h v"]:
    """Quadratic form of `log_linear_attention`, from the first token on."""
    i, j = np.indices((v.shape[1], v.shape[1]))
    digits = np.frexp(i ^ j)[1]  # number of binary digits: 0 of 0, 1 of 1, 2 of 2 and 3
    scale = scales[:, i, :, np.minimum(digits, scales.shape[3] - 1)]  # (i, j, b, h)
    sums = jnp.cumsum(log_decay, axis=1)
    decay = jnp.exp(jnp.where((i >= j)[None, :, :, None], sums[:, :, None] - sums[:, None], -jnp.inf))
    return jnp.einsum("bijh,ijbh,bihk,bjhk,bjhv->bihv", decay, scale, q, k, v)


def empty_log_linear_state(batch_size: int, n_levels: int, n_heads: int, k_dim: int, v_dim: int) -> LogLinearState:
    """Initial state: zeros."""
    s = jnp.zeros((batch_size, n_levels - 1, n_heads, k_dim, v_dim), jnp.float32)
    return LogLinearState(s, jnp.zeros((batch_size,), jnp.int32))


def log_linear_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    log_decay: Float[Array, "b t h"],
    scales: Float[Array, "b t h levels"],
    state: LogLinearState,
    places: Int[Array, "b t"] | None = None,
    chunk_size: int = CHUNK,
) -> tuple[Float[Array, "b t h v"], LogLinearState]:
    """Applies the equation of the module docstring to `t >= 0` tokens, from any state.

    Args:
      log_decay: logarithm of `a`, at most 0, finite.
      scales: lambda per level; at least two levels.
      state: state after the earlier tokens, with one level less.
      places: positions of the tokens in their packed documents, from 0; None: they follow `state.place`.
      chunk_size: chunk length; affects only the speed.

    Returns:
      y in the dtype of `v`, and the state after the last token. O(t (chunk_size + levels k) v) time per head.
    """
    t = v.shape[1]
    if places is None:
        places = state.place[:, None] + jnp.arange(t, dtype=jnp.int32)[None]
    tokens = (q, k, v, log_decay.astype(jnp.float32), scales.astype(jnp.float32), places)
    whole = t // chunk_size
    outputs = []
    if whole:
        parts = jax.tree.map(
            lambda x: x[:, : whole * chunk_size].reshape(x.shape[0], whole, chunk_size, *x.shape[2:]).swapaxes(0, 1),
            tokens,
        )
        state, y = jax.lax.scan(jax.checkpoint(_chunk), state, parts)
        outputs.append(y.swapaxes(0, 1).reshape(v.shape[0], whole * chunk_size, *v.shape[2:]))
    if t % chunk_size or not whole:
        state, y = _chunk(state, jax.tree.map(lambda x: x[:, whole * chunk_size :], tokens))
        outputs.append(y)
    return jnp.concatenate(outputs, axis=1), state


def log_linear_attention_step(
    state: LogLinearState,
    q: Float[Array, "b h k"],
    k: Float[Array, "b h k"],
    v: Float[Array, "b h v"],
    *,
    log_decay: Float[Array, "b h"],
    scales: Float[Array, "b h levels"],
) -> tuple[Float[Array, "b h v"], LogLinearState]:
    """One token: O(levels k v) per head. The token merges with all runs shorter than the one it completes."""
    kept = jnp.exp(log_decay.astype(jnp.float32))[:, None, :, None, None] * state.s
    q32, k32, v32, scales = (x.astype(jnp.float32) for x in (q, k, v, scales))
    y = jnp.einsum("bhk,bhl,blhkv->bhv", q32, scales[..., 1:], kept, precision="highest")
    y = y + (scales[..., 0] * (q32 * k32).sum(-1))[..., None] * v32
    slots = jnp.arange(state.s.shape[1])[None]
    target = _level(state.place + 1, state.place, state.s.shape[1] + 1)[:, None] - 1
    joined = jnp.where((slots <= target)[..., None, None, None], kept, 0).sum(1) + k32[..., None] * v32[..., None, :]
    rest = jnp.where((slots > target)[..., None, None, None], kept, 0)
    s = jnp.where((slots == target)[..., None, None, None], joined[:, None], rest)
    return y.astype(v.dtype), LogLinearState(s, state.place + 1)


def _level(i: Int[Array, "..."], j: Int[Array, "..."], n_levels: int) -> Int[Array, "..."]:
    """Level of the positions j <= i, at most the last one."""
    return jnp.minimum(32 - jax.lax.clz(i ^ j), n_levels - 1)


def _chunk(state: LogLinearState, tokens: tuple) -> tuple[LogLinearState, Array]:
    """Computes a chunk in parallel, from any state; a position that does not continue the state's starts a document."""
    q, k, v, log_decay, scales, places = tokens
    t, n_levels = v.shape[1], scales.shape[-1]
    q32, k32, v32 = (x.astype(jnp.float32) for x in (q, k, v))
    index = jnp.arange(t, dtype=jnp.int32)
    starts = places - index[None]  # equal within a document
    seen = (starts[:, :, None] == starts[:, None]) & (index[:, None] >= index[None])[None]
    goes_on = starts == state.place[:, None]
    # sums of log_decay over j < r <= i, without differences of long sums
    later = jnp.where((index[:, None] > index[None])[None, :, :, None], log_decay[:, :, None], 0).cumsum(1)
    level = _level(places[:, :, None], places[:, None], n_levels)
    weights = sum(jnp.where((level == n)[..., None], scales[:, :, None, :, n], 0) for n in range(n_levels))
    weights = jnp.where(seen[..., None], weights * jnp.exp(later), 0)
    scores = jnp.einsum("bihk,bjhk->bijh", q32, k32, precision="highest")
    y = jnp.einsum("bijh,bjhv->bihv", weights * scores, v32, precision="highest")

    slots = jnp.arange(1, n_levels, dtype=jnp.int32)
    of_slot = jnp.maximum(slots[None, None], _level(places, state.place[:, None], n_levels)[..., None])
    chosen = jax.nn.one_hot(of_slot, n_levels, dtype=jnp.float32)  # (b, t, slot, level)
    past = jnp.einsum("bthl,btsl->bths", scales, chosen, precision="highest")
    past = past * jnp.exp(log_decay.cumsum(1))[..., None]
    past = jnp.where(goes_on[..., None, None], past, 0)
    y = y + jnp.einsum("bthk,bths,bshkv->bthv", q32, past, state.s, precision="highest")
    if t == 0:
        return state, y.astype(v.dtype)

    end = places[:, -1] + 1
    of_token = jax.nn.one_hot(_level(end[:, None], places, n_levels) - 1, n_levels - 1, dtype=jnp.float32)
    kept = jnp.where(seen[:, -1, :, None], jnp.exp(later[:, -1]), 0)
    s = jnp.einsum("bjs,bjh,bjhk,bjhv->bshkv", of_token, kept, k32, v32, precision="highest")
    moved = jnp.maximum(slots[None], _level(end, state.place, n_levels)[:, None]) - 1
    into = jnp.where(goes_on[:, -1, None, None], jax.nn.one_hot(moved, n_levels - 1, dtype=jnp.float32), 0)
    decayed = jnp.exp(log_decay.sum(1))[:, None, :, None, None] * state.s
    s = s + jnp.einsum("bst,bshkv->bthkv", into, decayed, precision="highest")
    return LogLinearState(s, end), y.astype(v.dtype)
