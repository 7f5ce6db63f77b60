"""Softmax attention to nearby keys, in blocks; also returns the logarithm of the sum of weights.

    y_i = sum_j softmax_j(q_i . k_j / sqrt(k)) v_j        lse_i = log sum_j exp(q_i . k_j / sqrt(k))

over the keys j <= i whose integer labels (position, block, document) differ from those of token i by at most given
limits. Queries are split into blocks; each block is scored with its own keys and with `reach` earlier keys, rounded up
to whole blocks: O(t (block_size + reach)). With `lse` the result can be combined with attention to other keys. Plain
sliding windows have kernels in `pallas_kernels.sliding_window`.

The backward pass scores again. Scores, softmax and sums are float32.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from jaxzoo.ops.naive import attend_all
from jaxzoo.parallel.sequence_parallel import apply_with_halo
from jaxzoo.parallel.sharding import sequence_devices
from jaxzoo.utils.array_typing import Array, Bool, Float, Int
from pallas_kernels.softmax import softmax_attention


def naive_local_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b s g k"],
    v: Float[Array, "b s g v"],
    labels: tuple[Int[Array, "#b s"], ...] = (),
    limits: tuple[int, ...] = (),
    *,
    block_size: int,
    reach: int,
) -> tuple[Float[Array, "b t h v"], Float[Array, "b t h"]]:
    """Quadratic form of `local_attention`."""
    (t, s), query = (q.shape[1], k.shape[1]), np.arange(q.shape[1])[:, None]
    reach = reach if t <= block_size else -(-reach // block_size) * block_size
    key = np.arange(t - s, t)[None]  # places from the first query on
    visible = ((query // block_size * block_size - reach <= key) & (key <= query))[None]
    for label, limit in zip(labels, limits, strict=True):
        distance = label[:, s - t :, None] - label[:, None]
        visible = visible & (distance <= limit) & (distance >= 0)
    return attend_all(q, k, v, jnp.asarray(visible))


@functools.partial(jax.jit, static_argnames=("limits", "block_size", "reach"))
def local_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b s g k"],
    v: Float[Array, "b s g v"],
    labels: tuple[Int[Array, "#b s"], ...] = (),
    limits: tuple[int, ...] = (),
    *,
    block_size: int,
    reach: int,
) -> tuple[Float[Array, "b t h v"], Float[Array, "b t h"]]:
    """Applies the equation of the module docstring to `t >= 0` queries, at the positions of the last `t` of `s` keys.

    Args:
      q: queries; h is a multiple of g.
      k: keys of the `s - t` tokens before the queries, then of the queries' own tokens.
      v: values of the same tokens.
      labels: int32 labels of the keys' tokens; a leading axis of 1 serves all rows. A query sees the keys with `0 <=
        label of the query - label of the key <= limit` for every label.
      limits: one per label, at least 0: 0 for equal labels (documents), w - 1 for a window of w positions.
      block_size: queries per block, counted from the first query.
      reach: earlier keys that a block is scored with, rounded up to whole blocks unless one block holds all queries.
        Keys further back are not seen, whatever their labels.

    Returns:
      y in the dtype of `q`, and lse in float32. If the time of queries and keys is sharded in whole blocks, each device
      receives the `reach` keys before its own.
    """
    devices = sequence_devices(q.shape[1])
    if devices == 1 or k.shape[1] != q.shape[1] or q.shape[1] // devices % block_size:
        return _local_attention(q, k, v, labels, limits, block_size=block_size, reach=reach)
    halo = -(-reach // block_size) * block_size
    options = {"halo": halo, "limits": limits, "block_size": block_size, "reach": reach}
    exists = jnp.ones((1, q.shape[1]), jnp.int32)
    return apply_with_halo(Partial(functools.partial(_with_halo, **options)), halo, (q, k, v, (exists, *labels)))


def _with_halo(tokens: tuple, segment_ids: None, *, halo: int, limits: tuple[int, ...], **options: int) -> tuple:
    """Attention of all but the first `halo` queries; missing keys are labelled 0, the others 1."""
    q, k, v, labels = tokens
    return _local_attention(q[:, halo:], k, v, labels, (0, *limits), **options)


def _local_attention(
    q: Array, k: Array, v: Array, labels: tuple[Array, ...], limits: tuple[int, ...], *, block_size: int, reach: int
) -> tuple[Array, Array]:
    """`local_attention` for sequences that are not split over devices."""
    (b, t, h, d), (g, v_dim), past = q.shape, v.shape[2:], k.shape[1] - q.shape[1]
    if b == 0 or t == 0:
        return jnp.zeros((b, t, h, v_dim), q.dtype), jnp.zeros((b, t, h), jnp.float32)
    n, c = -(-t // block_size), min(block_size, t)
    front = min(reach, past) if n == 1 else -(-reach // c) * c
    lead = front - past

    def by_query(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, 0), (0, n * c - t)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(x.shape[0], n, c, *x.shape[2:])

    def by_key(x: jax.Array) -> jax.Array:
        x = jnp.pad(x[:, max(-lead, 0) :], [(0, 0), (max(lead, 0), n * c - t)] + [(0, 0)] * (x.ndim - 2))
        if n == 1:
            return x[:, None]
        x = x.reshape(x.shape[0], -1, c, *x.shape[2:])
        return jnp.concatenate([x[:, i : i + n] for i in range(front // c + 1)], axis=2)

    key, query = (jnp.arange(size, dtype=jnp.int32) for size in (front + c, c))
    first = jnp.arange(n, dtype=jnp.int32)[:, None, None] * c
    exists = first + key[None, None] >= lead
    visible = (exists & (key[None, :] <= front + query[:, None])[None])[None]
    for label, limit in zip(labels, limits, strict=True):
        distance = by_query(label[:, past:])[..., None] - by_key(label)[:, :, None]
        visible = visible & (distance >= 0) & (distance <= limit)

    @jax.checkpoint
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        return softmax_attention(
            by_query(q).reshape(b, n, c, g, h // g, d).transpose(0, 1, 3, 4, 2, 5),
            by_key(k).transpose(0, 1, 3, 2, 4),
            by_key(v).transpose(0, 1, 3, 2, 4),
            visible=visible[:, :, None, None],
            scale=d**-0.5,
        )

    y, lse = attend(q, k, v)
    y = y.transpose(0, 1, 4, 2, 3, 5).reshape(b, n * c, h, v_dim)[:, :t]
    return y, lse.transpose(0, 1, 4, 2, 3).reshape(b, n * c, h)[:, :t]


def keys_per_query(length: int, *, block_size: int, reach: int) -> float:
    """Scores per query that `local_attention` computes for `length` tokens without a past, masked ones included."""
    block = min(block_size, length)
    n = -(-length // block)
    return n * block * (block + (-(-reach // block) * block if n > 1 else 0)) / length


def attend_one(
    q: Float[Array, "b h k"], k: Float[Array, "b s g k"], v: Float[Array, "b s g v"], visible: Bool[Array, "b s"]
) -> tuple[Float[Array, "b h v"], Float[Array, "b h"]]:
    """Attention of one query per row to the keys in the mask `visible`; reads every key once."""
    (b, h, d), g = q.shape, k.shape[2]
    # Sums of products, not matrix products, which would copy the keys with heads in front of tokens.
    keys, values = (x.astype(jnp.float32)[:, :, :, None] for x in (k, v))
    scores = (np.float32(d**-0.5) * q.astype(jnp.float32).reshape(b, 1, g, h // g, d) * keys).sum(-1)
    scores = jnp.where(visible[:, :, None, None], scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=1, keepdims=True)
    y = (jnp.exp(scores - lse)[..., None] * values).sum(1)
    return y.reshape(b, h, v.shape[-1]).astype(q.dtype), lse.reshape(b, h)
