"""Sliding-window attention on a mesh. A kernel cannot be partitioned by the compiler, so each device calls its own.

Batch and heads are independent: no communication. A sharded sequence passes a halo: each part needs the keys and
values of the `window - 1` tokens before it, from as many parts before as hold them, one exchange each.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.halo import with_halo
from pallas_kernels.layout import make_layout, of_last_part, on_shares
from pallas_kernels.sliding_window.api import attend, check, sliding_window_attention
from pallas_kernels.sliding_window.cache import SlidingWindowCache, append, empty_cache, history, rounded


def sharded_sliding_window_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    window: int,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    sequence_axis: str | None = None,
    segment_ids: jax.Array | None = None,
    initial_cache: SlidingWindowCache | None = None,
    return_cache: bool = False,
    **options,
):
    """`sliding_window_attention` with each device on its share; arguments and results as there, shapes global.

    Args:
      q, k, v, window: as for `sliding_window_attention`. A single key/value head is copied to all devices.
      mesh: None: the one in context (`jax.set_mesh`). Over its axes not named here everything is replicated, and
        gradients are averaged by an all-reduce: name all axes of more than one device.
      batch_axes, head_axes: mesh axes that share out the batch and the heads, each evenly.
      sequence_axis: mesh axis that shares out time, evenly; None: every device sees whole sequences.
      segment_ids, initial_cache, return_cache: as for `sliding_window_attention`; caches are sharded over batch and
        heads and replicated over `sequence_axis`, where returning one takes an all-reduce of it.
      **options: scale and implementation of `sliding_window_attention`.

    Raises:
      ValueError: no mesh, an unknown axis, or a dimension that its axes do not divide.
    """
    check(q, k, v, window, segment_ids, initial_cache, return_cache)
    axes = {"batch_axes": batch_axes, "head_axes": head_axes, "sequence_axis": sequence_axis}
    layout = make_layout("sharded_sliding_window_attention", mesh, q, k, **axes)
    rings: Any = P(layout.batch, None, layout.kv_heads)
    positions: Any = P(layout.batch)
    caches = SlidingWindowCache(rings, rings, positions)
    options = {"window": window, "return_cache": return_cache, **options}
    run = functools.partial(sliding_window_attention, **options)
    if sequence_axis is not None and q.shape[1] > 0:
        run = functools.partial(_sequence_part, axis=sequence_axis, n=layout.mesh.shape[sequence_axis], **options)

    def local(q, k, v, segment_ids, initial_cache):
        return run(q, k, v, segment_ids=segment_ids, initial_cache=initial_cache)

    given = P() if initial_cache is None else caches
    specs = layout.queries, layout.keys, layout.keys, P(layout.batch, layout.time), given
    arrays = q, k, v, segment_ids, initial_cache
    return on_shares(local, layout.mesh, arrays, specs, (layout.queries, caches) if return_cache else layout.queries)


def _sequence_part(
    q, k, v, *, axis, n, window, segment_ids, initial_cache, return_cache, scale=None, implementation=None
):
    """The part of this device along `axis`, of n; the cache after is that of the last part, on every device."""
    t, index, cache = q.shape[1], lax.axis_index(axis), initial_cache
    if initial_cache is not None:
        k, v = rounded(initial_cache, k, v)
    seen = jnp.zeros((q.shape[0],), jnp.int32) if initial_cache is None else initial_cache.position
    before = jnp.asarray(index, jnp.int32) * t
    old_k, old_v = (None, None) if initial_cache is None else history(initial_cache, q.dtype)
    keys, values = (with_halo(x, window - 1, old, axis=axis, parts=n) for x, old in ((k, old_k), (v, old_v)))
    if segment_ids is not None:
        segment_ids = with_halo(segment_ids, window - 1, None, axis=axis, parts=n)
    start = jnp.maximum(window - 1 - before - seen, 0)
    y = attend(q, keys, values, start, segment_ids, window=window, scale=scale, implementation=implementation)
    if not return_cache:
        return y
    if cache is None:
        cache = empty_cache(q.shape[0], window, k.shape[2], k.shape[3], v.shape[3])
    return y, of_last_part(append(cache, keys, values, count=n * t), axis=axis, parts=n)
