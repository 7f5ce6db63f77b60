"""Softmax attention whose scores see the product of Householder-like maps between two tokens: PaTH (Yang et al. 2025).

    R_l = I - beta_l w_l w_l^T          s_ij = (k_j . R_{j+1} .. R_i q_i + sum_{l=j+1..i} g_l) / sqrt(k)
    y_i = sum_{j <= i} softmax_j(s_ij) v_j

R_i acts on the query first. The maps are symmetric, so that keys can be turned instead: a cache holds
`R_i .. R_{j+1} k_j` of every key, and a token multiplies all of it by its own map, O(k) per key.

A chunk of c tokens does so at once by the UT transform (Yang et al. 2024): with strict(.) the part below the diagonal,
and B_ls = w_l . k_s where key s comes before token l, else 0,

    U = (I + strict(Diag(beta) W W^T))^-1 Diag(beta) B        scores = Q K^T - tril(Q W^T) U        K <- K - U^T W

for the keys of the cache and of the chunk alike. Cost: three times that of attention. Computed in float32.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxzoo.ops.forget_bias import forget_bias
from jaxzoo.utils.array_typing import Array, Float, Int
from pallas_kernels.ut_transform import ut_inverse

CHUNK = 64
"""Tokens of a chunk."""


class PathCache(NamedTuple):
    """The past. Slot `p` holds absolute position `p`; slots to come hold zeros."""

    k: Float[Array, "b s g k"]
    """Keys, multiplied by the maps of all tokens after them, float32; `s` is the capacity."""
    v: Float[Array, "b s g v"]
    """Values, in the dtype given."""
    position: Int[Array, "b"]
    """Tokens seen so far by each row, int32."""
    log_decay: Float[Array, "b h s"]
    """Sum of the log gates after each key, float32; empty, (b, 0, s), without a forget gate."""


class PathTokens(NamedTuple):
    """Inputs of the op; g divides h."""

    q: Float[Array, "b t h k"]
    k: Float[Array, "b t g k"]
    v: Float[Array, "b t g v"]
    w: Float[Array, "b t g k"]
    """Directions of the maps, of length 1 or less."""
    beta: Float[Array, "b t g"]
    """Strengths of the maps, in [0, 2], float32."""
    log_gate: Float[Array, "b t h"] | None
    """g, at most 0, float32; None: 0."""


def path_attention(
    tokens: PathTokens, cache: PathCache, segment_ids: Int[Array, "b t"] | None = None, *, chunk_size: int = CHUNK
) -> tuple[Float[Array, "b t h v"], PathCache]:
    """The equation of the module docstring for `t >= 0` tokens after those of the cache, which has room for them.

    Args:
      tokens: queries, keys, values, maps and gates.
      cache: keys and values before them.
      segment_ids: packed documents, int32, with an empty cache of t slots; nothing of another document is seen.
      chunk_size: tokens of a chunk; changes the speed alone.

    Returns:
      y in the dtype of q, and the cache after the last token.
    """
    t, ids = tokens.q.shape[1], segment_ids
    if t == 0:
        return tokens.q, cache
    whole = t // chunk_size * chunk_size

    def chunks(x: jax.Array) -> jax.Array:
        x = x[:, :whole]
        return x.reshape(x.shape[0], -1, chunk_size, *x.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def body(cache: PathCache, now: tuple) -> tuple[PathCache, jax.Array]:
        tokens, own_ids = now
        y, cache = _chunk(cache, tokens, own_ids, ids)
        return cache, y

    done = []
    if whole:
        cache, y = lax.scan(body, cache, jax.tree.map(chunks, (tokens, ids)))
        done.append(y.swapaxes(0, 1).reshape(y.shape[1], whole, *y.shape[3:]))
    if whole < t:
        rest, rest_ids = jax.tree.map(lambda x: x[:, whole:], (tokens, ids))
        y, cache = _chunk(cache, rest, rest_ids, ids)
        done.append(y)
    return jnp.concatenate(done, axis=1), cache


def _chunk(
    cache: PathCache, tokens: PathTokens, ids: Array | None, slot_ids: Array | None
) -> tuple[jax.Array, PathCache]:
    """The tokens of one chunk."""
    (b, c, h, width), g = tokens.q.shape, tokens.k.shape[2]
    q, k, w = (x.astype(jnp.float32) for x in (tokens.q, tokens.k, tokens.w))
    exact = lax.Precision.DEFAULT if tokens.q.dtype == jnp.bfloat16 else lax.Precision.HIGHEST
    product = functools.partial(jnp.einsum, precision=exact, preferred_element_type=jnp.float32)
    keys, values = (_write(old, new, cache.position) for old, new in ((cache.k, k), (cache.v, tokens.v)))
    at = cache.position[:, None] + jnp.arange(c, dtype=jnp.int32)[None, :]
    slots = jnp.arange(keys.shape[1], dtype=jnp.int32)[None, :]
    visible = slots[:, None, :] <= at[:, :, None]
    if ids is not None:
        assert slot_ids is not None
        visible = visible & (slot_ids[:, None, :] == ids[:, :, None])

    earlier = (slots[:, None, :] < at[:, :, None])[:, None]
    inverse = ut_inverse(product("bigk,bjgk->bgij", w, w)[:, None], tokens.beta, implementation="xla")[:, 0]
    u = product("bgij,bgjs->bgis", inverse, jnp.where(earlier, product("bcgk,bsgk->bgcs", w, keys), 0.0))
    q = q.reshape(b, c, g, h // g, width)
    onto = jnp.where(np.tri(c, dtype=bool)[None, None, None], product("bigrk,bjgk->bgrij", q, w), 0.0)
    scores = product("bcgrk,bsgk->bgrcs", q, keys) - product("bgrij,bgjs->bgris", onto, u)
    keys = keys - product("bgcs,bcgk->bsgk", u, w)

    log_decay = cache.log_decay
    if tokens.log_gate is not None:
        bias, log_decay = forget_bias(tokens.log_gate, at, slots, log_decay)
        scores = scores + bias.reshape(scores.shape)
    scores = jnp.where(visible[:, None, None], np.float32(width**-0.5) * scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(tokens.q.dtype)
    y = product("bgrcs,bsgv->bcgrv", weights, values.astype(tokens.q.dtype)).astype(tokens.q.dtype)
    return y.reshape(b, c, h, values.shape[3]), PathCache(keys, values, cache.position + c, log_decay)


def _write(cache: Float[Array, "b s g k"], new: Float[Array, "b t g k"], start: Int[Array, "b"]) -> jax.Array:
    """Writes each row's tokens from its own slot `start` on."""
    update = jax.vmap(lambda row, part, slot: lax.dynamic_update_slice_in_dim(row, part, slot, axis=0))
    return update(cache, new.astype(cache.dtype), start)
