"""Attention to the own block and to a block retrieved by its landmark: Landmark CAT (Li et al. 2025), eq. 1.

Time is split into blocks of B tokens. The landmark of a block is the convolution of the keys with a long filter F at
the block's last token. With `a` the number of complete blocks before the block of token i,

    b = argmax_{j < a} q_i . m_j           m_j = sum_{u >= 0} F_u k_{(j + 1) B - 1 - u}
    y_i = sum_l softmax_l(q_i . k_l / sqrt(k)) v_l        over block b, and over l <= i in the own block

for each head; over the own block only if a = 0. `jaxzoo.ops.landmarks` describes F.

Blocks of packed documents are counted from the start of each document. Ties go to the earliest block.

The argmax has no gradient, so the retrieval gets one by a gate, which is our addition. With p the softmax of `q_i . m_j
/ sqrt(k)` over j < a, at b, "straight_through" multiplies the weights of the retrieved block by `p / stop_gradient(p)`,
which is 1. "softmax" multiplies them by p, as Landmark Attention does (Mohtashami and Jaggi 2023); the output is then
not that of eq. 1.

Cost: O(k (t / B + B)) per query and head. A chunk of queries at a time scores all landmarks and gathers the retrieved
blocks, so memory is that of the tokens and of one chunk. The backward pass computes each chunk again. Scores, softmax
and sums are float32.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxzoo.ops.landmarks import LongFilter, block_sums, carried, take
from jaxzoo.ops.local_attention import local_attention
from jaxzoo.ops.segments import position_in_segment
from jaxzoo.utils.array_typing import Array, Bool, Float, Int
from pallas_kernels.softmax import softmax_attention

CHUNK = 128
"""Default queries per chunk; B if that is more."""

Gate = Literal["straight_through", "softmax", "none"]
"""Gradient of the retrieval, see above; "none": no gradient reaches the landmarks (MoBA, NSA)."""


class Retrieval(NamedTuple):
    """Rule by which blocks are chosen."""

    n_blocks: int = 1
    """Blocks that a query retrieves, by best score; eq. 1 has one. 0: only the own block is seen."""
    gate: Gate = "straight_through"
    """Gradient of the retrieval."""
    chunk_size: int | None = None
    """Queries per chunk; affects only time and memory. None: `CHUNK`, or B."""
    grouped: bool = False
    """Query heads that share a key head retrieve the same blocks, by the mean of their softmaxes over the complete
    blocks, and always the first block and the one before their own (NSA)."""


BEST = Retrieval()
"""Retrieves the best block."""


def naive_landmark_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t g k"],
    v: Float[Array, "b t g v"],
    long_filter: LongFilter,
    contents: tuple[Float[Array, "b t h k"], Float[Array, "b t g k"]] | None = None,
    *,
    retrieval: Retrieval = BEST,
) -> Float[Array, "b t h v"]:
    """Quadratic form of `landmark_attention` for one document per row, and not for grouped heads."""
    t, width, size, repeats = q.shape[1], q.shape[3], len(long_filter.taps), q.shape[2] // k.shape[2]
    content_q, content_k = contents or (q, k)
    i, j, block = np.arange(t)[:, None], np.arange(t)[None], np.arange(t // size)[None]
    lag = (block.T + 1) * size - 1 - j
    taps = jnp.stack([long_filter.taps[u % size] * long_filter.carry ** (u // size) for u in range(t)])
    landmarks = jnp.einsum("njg,bjgk->bngk", jnp.where(lag[..., None] >= 0, taps[np.maximum(lag, 0)], 0), content_k)
    k, v, landmarks = (jnp.repeat(x, repeats, axis=2) for x in (k, v, landmarks))
    scores = jnp.einsum("bihk,bnhk->bhin", content_q, landmarks) / width**0.5
    before = (block < i // size)[None, None]
    order = jnp.argsort(jnp.where(before, -scores, jnp.inf), axis=3)
    chosen = before & (jnp.argsort(order, axis=3) < retrieval.n_blocks)
    log_p = jax.nn.log_softmax(scores, where=before | ~before.any(3, keepdims=True))
    gates = {"softmax": log_p, "straight_through": log_p - lax.stop_gradient(log_p), "none": 0 * log_p}
    by_key = lambda x: jnp.pad(jnp.repeat(x, size, axis=3), [(0, 0)] * 3 + [(0, t % size)])  # noqa: E731
    weights = jnp.einsum("bihk,bjhk->bhij", q, k) / width**0.5 + by_key(jnp.where(chosen, gates[retrieval.gate], 0))
    visible = ((i // size == j // size) & (j <= i))[None, None] | by_key(chosen)
    return jnp.einsum("bhij,bjhv->bihv", jax.nn.softmax(jnp.where(visible, weights, -jnp.inf)), v)


@functools.partial(jax.jit, static_argnames=("retrieval",))
def landmark_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t g k"],
    v: Float[Array, "b t g v"],
    long_filter: LongFilter,
    contents: tuple[Float[Array, "b t h k"], Float[Array, "b t g k"]] | None = None,
    segment_ids: Int[Array, "b t"] | None = None,
    *,
    retrieval: Retrieval = BEST,
) -> Float[Array, "b t h v"]:
    """Applies the equation of the module docstring to `t >= 0` tokens, from the first on.

    Args:
      q: queries; h is a multiple of g.
      long_filter: F.
      contents: queries and keys for the retrieval, such as those before rotation; None: `q`, `k`.
      segment_ids: ids of packed documents, int32; each document is one contiguous run of equal ids.
      retrieval: how blocks are chosen.

    Returns:
      y in the dtype of `q`.
    """
    t, size = q.shape[1], long_filter.taps.shape[0]
    content_q, content_k = (q, k) if contents is None else contents
    n = max(t - 1, 0) // size  # no token follows a block that ends with the last token
    if segment_ids is None:
        own = local_attention(q, k, v, block_size=size, reach=0)
        cut = lambda x: x[:, : n * size].reshape(x.shape[0], n, size, *x.shape[2:])  # noqa: E731
        fresh = (jnp.arange(n, dtype=jnp.int32) == 0)[None]
        stop = (jnp.arange(t, dtype=jnp.int32) // size)[None]
        start = jnp.zeros_like(stop)
    else:
        place = position_in_segment(segment_ids)
        own = local_attention(q, k, v, (place // size, segment_ids), (0, 0), block_size=size, reach=size - 1)
        begins, start, stop = blocks_of_documents(place, n, size)
        inside = (begins[..., None] + jnp.arange(size, dtype=jnp.int32)[None, None]).reshape(
            begins.shape[0], begins.shape[1] * size
        )
        cut = lambda x: take(x, inside).reshape(x.shape[0], n, size, *x.shape[2:])  # noqa: E731
        fresh = take(place, begins) == 0
    if n == 0 or retrieval.n_blocks == 0:
        return own[0]
    sums = block_sums(cut(content_k), long_filter.taps)
    landmarks = carried(sums, jnp.where(fresh[..., None], 0, long_filter.carry[None, None]), jnp.zeros_like(sums[:, 0]))
    return join(own, retrieved(q, content_q, cut(k), cut(v), landmarks, (start, stop), retrieval), q.dtype)


@functools.partial(jax.jit, static_argnames=("retrieval",))
def landmark_attention_from(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b s g k"],
    v: Float[Array, "b s g v"],
    landmarks: Float[Array, "b n g k"],
    position: Int[Array, "b"],
    content_q: Float[Array, "b t h k"] | None = None,
    *,
    retrieval: Retrieval = BEST,
) -> Float[Array, "b t h v"]:
    """Attention of `t >= 0` queries per row, from `position` on, to a cache of keys.

    Args:
      k: keys at positions 0, 1, ..., including the queries' own; s is n B. Later keys are not seen.
      v: values at the same positions.
      landmarks: landmarks of the blocks, the queries' own tokens included (`extend_landmarks`).
      position: int32, tokens before the queries.
      content_q: queries for the retrieval; None: `q`.
      retrieval: how blocks are chosen.

    Returns:
      y in the dtype of `q`.
    """
    (b, t), (s, n) = q.shape[:2], (k.shape[1], landmarks.shape[1])
    size = s // n
    near = position[:, None] + jnp.arange(1 - size, t, dtype=jnp.int32)[None]  # from the earliest start of a block
    keys, values = (take(x, jnp.clip(near, 0, s - 1)).astype(q.dtype) for x in (k, v))
    own = local_attention(q, keys, values, (near // size,), (0,), block_size=size, reach=size - 1)
    if t == 0 or retrieval.n_blocks == 0:
        return own[0]
    stop = near[:, size - 1 :] // size
    k, v = (x.reshape(b, n, size, *x.shape[2:]) for x in (k, v))
    content_q = q if content_q is None else content_q
    return join(own, retrieved(q, content_q, k, v, landmarks, (jnp.zeros_like(stop), stop), retrieval), q.dtype)


def blocks_of_documents(place: Int[Array, "b t"], n: int, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """First tokens of up to `n` complete blocks per row, in order, padded with 0; and for each token the range, start
    and stop, of the complete blocks of its document before its own block."""
    ends = (place + 1) % size == 0
    ended = jnp.cumsum(ends.astype(jnp.int32), axis=1)
    index = jnp.broadcast_to(jnp.arange(place.shape[1], dtype=jnp.int32)[None], place.shape)
    rows = jnp.arange(place.shape[0], dtype=jnp.int32)[:, None]
    begins = jnp.zeros((place.shape[0], n), jnp.int32)
    begins = begins.at[rows, jnp.where(ends, ended - 1, n)].set(index - (size - 1), mode="drop")
    start = take(jnp.where(ends, ended - 1, ended), index - place)
    return begins, start, start + place // size


def retrieved(
    q: Float[Array, "b t h k"],
    content_q: Float[Array, "b t h k"],
    k: Float[Array, "b n c g k"],
    v: Float[Array, "b n c g v"],
    landmarks: Float[Array, "b n g k"],
    eligible: tuple[Int[Array, "#b t"], ...],
    retrieval: Retrieval,
) -> tuple[Float[Array, "b t h v"], Float[Array, "b t h"]]:
    """Attention to the retrieved blocks only, and the logarithm of the sum of weights, -inf if no block is eligible.

    eligible: start and stop of the range of blocks that each query may retrieve; for grouped heads also the number of
    blocks that end at or before the query.
    """
    b, t, h, width = q.shape
    n, size = k.shape[1:3]
    chunk = retrieval.chunk_size or max(CHUNK, size)
    m = min(retrieval.n_blocks, n)
    if t > 1:  # sums the gradients of each block in float32; a single query must not cast the whole cache
        k, v = k.astype(jnp.float32), v.astype(jnp.float32)

    @jax.checkpoint
    def attend(queries: tuple) -> tuple[jax.Array, jax.Array]:
        q, content_q, *eligible = queries
        c = q.shape[1]
        if retrieval.grouped:
            chosen, found, log_p = _choose_together(content_q, landmarks, eligible, m)
        else:
            chosen, found, log_p = _choose(content_q, landmarks, blocks_between(eligible[0], eligible[1], n), m)
        if retrieval.gate != "softmax":
            log_p = log_p - lax.stop_gradient(log_p) if retrieval.gate == "straight_through" else jnp.zeros_like(log_p)
        some = found[..., :1]
        each = lambda x: jnp.repeat(x.reshape(b, c, h, m), size, axis=3)[:, :, :, None, None]  # noqa: E731
        y, lse = softmax_attention(
            q.reshape(b, c, h, 1, 1, width),
            *(_gather(x, chosen).reshape(b, c, h, m * size, x.shape[4]).astype(q.dtype) for x in (k, v)),
            visible=each(found | ~some),
            bias=each(log_p),
            scale=width**-0.5,
        )
        lse = jnp.where(some.reshape(b, c, h), lse.reshape(b, c, h), -jnp.inf)
        return y.reshape(b, c, h, v.shape[4]), lse

    queries = (q, content_q, *(jnp.broadcast_to(x, (b, t)) for x in eligible))
    if t <= chunk:
        return attend(queries)
    n_chunks = -(-t // chunk)
    queries = jax.tree.map(lambda x: _to_chunks(x, n_chunks, chunk), queries)
    y, lse = lax.map(attend, queries)
    whole = lambda x: x.swapaxes(0, 1).reshape(b, n_chunks * chunk, *x.shape[3:])[:, :t]  # noqa: E731
    return whole(y), whole(lse)


def _choose(
    content_q: Float[Array, "b c h k"], landmarks: Float[Array, "b n g k"], allowed: Bool[Array, "b c n"], m: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Indices of the `m` allowed blocks with the best scores, a mask of those that exist, and the log of their softmax
    weights over all allowed blocks (0 if there are none), each `(b, c, g, r, m)`."""
    (b, c, h, width), g = content_q.shape, landmarks.shape[2]
    q = content_q.astype(jnp.float32).reshape(b, c, g, h // g, width)
    scores = jnp.einsum("bcgrk,bngk->bcgrn", q, landmarks, precision=lax.Precision.HIGHEST)
    scores, allowed = np.float32(width**-0.5) * scores, allowed[:, :, None, None]
    best, chosen = lax.top_k(lax.stop_gradient(jnp.where(allowed, scores, -jnp.inf)), m)
    found = best > -jnp.inf
    some = allowed.any(axis=-1, keepdims=True)
    total = jax.nn.logsumexp(jnp.where(allowed | ~some, scores, -jnp.inf), axis=-1, keepdims=True)
    return chosen, found, jnp.where(found, jnp.take_along_axis(scores, chosen, axis=-1) - total, 0)


def _choose_together(
    q: Float[Array, "b c h k"], landmarks: Float[Array, "b n g k"], eligible: list[Int[Array, "b c"]], m: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`_choose` for grouped heads: the same blocks for all query heads of a key head; log weights are 0."""
    (b, c, h, width), (n, g) = q.shape, landmarks.shape[1:3]
    start, stop, ended = eligible
    heads = q.astype(jnp.float32).reshape(b, c, g, h // g, width)
    scores = jnp.einsum("bcgrk,bngk->bcgrn", heads, landmarks, precision=lax.Precision.HIGHEST)
    visible, allowed = (blocks_between(start, end, n)[:, :, None] for end in (ended, stop))
    scores = jnp.where(visible[..., None, :], np.float32(width**-0.5) * scores, np.float32(-1e30))
    share = jax.nn.softmax(scores, axis=-1)
    number = jnp.arange(n, dtype=jnp.int32)[None, None]
    forced = (number == start[..., None]) | (number == stop[..., None] - 1)
    rank = jnp.where(allowed, jnp.where(forced[:, :, None], 2.0, share.mean(3)), -1.0)
    best, chosen = lax.top_k(lax.stop_gradient(rank), m)
    chosen, found = (jnp.broadcast_to(x[:, :, :, None], (b, c, g, h // g, m)) for x in (chosen, best >= 0))
    return chosen, found, jnp.zeros(found.shape, jnp.float32)


def blocks_between(start: Int[Array, "b t"], stop: Int[Array, "b t"], n: int) -> Bool[Array, "b t n"]:
    """Mask of the blocks `start <= number < stop`, out of `n`."""
    number = jnp.arange(n, dtype=jnp.int32)[None, None]
    return (start[..., None] <= number) & (number < stop[..., None])


def _gather(blocks: Float[Array, "b n c g k"], chosen: Int[Array, "b c g r m"]) -> Float[Array, "b c g r m k"]:
    """Gathers the chosen blocks of each head, `(b, c, g, r m, size, k)`, without a transposed copy of all blocks."""
    b, c, g, r, m = chosen.shape
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(4, 5),
        collapsed_slice_dims=(1,),
        start_index_map=(1,),
        operand_batching_dims=(0, 3),
        start_indices_batching_dims=(0, 2),
    )
    sizes = (1, 1, blocks.shape[2], 1, blocks.shape[4])
    return lax.gather(blocks, chosen.reshape(b, c, g, r * m, 1), numbers, sizes, mode="promise_in_bounds")


def join(own: tuple[jax.Array, jax.Array], retrieved: tuple[jax.Array, jax.Array], dtype) -> jax.Array:
    """Combines two attention outputs, given with the log of their sums of weights, into one softmax."""
    (y, lse), (other, other_lse) = own, retrieved
    share = jax.nn.sigmoid(other_lse - lse)[..., None]
    return ((1 - share) * y.astype(jnp.float32) + share * other.astype(jnp.float32)).astype(dtype)


def _to_chunks(x: jax.Array, n: int, size: int) -> jax.Array:
    """(b, t, ...) -> (n, b, size, ...), with zeros after the last token."""
    x = jnp.pad(x, [(0, 0), (0, n * size - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(x.shape[0], n, size, *x.shape[2:]).swapaxes(0, 1)
