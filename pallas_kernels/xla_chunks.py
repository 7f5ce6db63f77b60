"""Recurrences in XLA on accelerators: many chunks of a sequence at once, with few launches."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.dispatch import may_run_on

GROUP = 4
"""Chunks that `states_before_affine` joins sequentially, before it joins such groups by doubling."""
STATES_AT_ONCE = 2**27
"""Numbers per device in the states of the chunks that are computed at once; longer sequences are split."""


def in_parallel() -> bool:
    """Whether to process many chunks at once: not on a CPU, which one chunk keeps busy."""
    return not may_run_on("cpu")


def keep_of(segment_ids: jax.Array | None) -> jax.Array | None:
    """(b, t) float32: 0 at the first token of every document but the first, 1 elsewhere; None: one document."""
    if segment_ids is None:
        return None
    return (jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) == 0).astype(jnp.float32)


def precision_of(dtype) -> lax.Precision:
    """Precision of products of arrays of this dtype."""
    return lax.Precision.DEFAULT if dtype == jnp.bfloat16 else lax.Precision.HIGHEST


def product(spec: str, x: jax.Array, y: jax.Array, *, precision: lax.Precision) -> jax.Array:
    """`einsum(spec, x, y)` in float32. If `precision` allows it, operands are bfloat16 on accelerators: half the bytes
    between kernels."""
    if precision == lax.Precision.DEFAULT and in_parallel():
        x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    return jnp.einsum(spec, x, y, precision=precision, preferred_element_type=jnp.float32)


def chunks_at_once(chunks: int, numbers: int) -> int:
    """Chunks that are computed at once, with `numbers` in the state of each."""
    if not in_parallel():
        return 1
    mesh = jax.sharding.get_abstract_mesh()  # inside a shard_map, sizes are per device
    devices = math.prod(size for name, size in mesh.shape.items() if name not in mesh.manual_axes)
    most = STATES_AT_ONCE * devices // max(numbers, 1)
    return max(1, min(chunks, most))


def tokens_at_once(t: int, numbers: int, *, least: int) -> int:
    """Tokens of a chunk if every token has a state of `numbers`: `least`; on a GPU as many as memory allows."""
    return max(least, chunks_at_once(t, numbers)) if may_run_on("cuda") else least


def states_before(state: Any, own: Any, kept: jax.Array | None, *, reverse: bool = False) -> tuple[Any, Any]:
    """The state before every chunk, and after the last one, by an associative scan.

    Args:
      state: state before the first chunk, arrays (b, h, ...).
      own: sum that every chunk adds, arrays (b n, h, ...) of n chunks per row.
      kept: decay factor of every chunk, (b n or 1, h or 1, ...); None: 1.
      reverse: from the last chunk to the first: cotangents after every chunk, and before the first one.

    Returns:
      arrays (b n, h, ...) and (b, h, ...).
    """
    rows, b = len(jax.tree.leaves(own)[0]), len(jax.tree.leaves(state)[0])

    def by_chunk(x):
        return x.reshape(b, rows // b, *x.shape[1:])

    ends = slice(1, None) if reverse else slice(None, -1)
    last = 0 if reverse else -1

    def with_first(first: jax.Array, x: jax.Array) -> jax.Array:
        parts = [first[:, None].astype(x.dtype), by_chunk(x)]
        return jnp.concatenate(parts[::-1] if reverse else parts, axis=1)

    def joined(earlier, later):
        (f, x), (g, y) = earlier, later
        if f is None:
            return None, jax.tree.map(jnp.add, x, y)
        return f * g, jax.tree.map(lambda x, y: x * g.reshape(*g.shape, *[1] * (x.ndim - g.ndim)) + y, x, y)

    sums, factors = jax.tree.map(with_first, state, own), None
    if kept is not None:
        kept = jnp.broadcast_to(kept, (rows, *kept.shape[1:]))
        factors = with_first(jnp.ones((b, *kept.shape[1:]), kept.dtype), kept)
    states = lax.associative_scan(joined, (factors, sums), reverse=reverse, axis=1)[1]
    before = jax.tree.map(lambda x: x[:, ends].reshape(rows, *x.shape[2:]), states)
    return before, jax.tree.map(lambda x: x[:, last], states)


@jax.custom_vjp
def states_before_affine(
    kept: jax.Array, change: jax.Array, own: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The states before n chunks with the update S <- (Diag(kept) + change) S + own, and the last state.

    Chunks of a group are joined sequentially, all groups at once; then each group with the 1, 2, 4 .. groups before it.
    The backward pass is the same recurrence from the last chunk to the first, with transposed matrices.

    kept: (b, n, h, k); change: (b, n, h, k, k); own: (b, n, h, k, v); state: (b, h, k, v), before the first chunk.
    """
    k, v = own.shape[3:]
    places = _stretches(kept, jnp.concatenate([own, change], axis=-1))
    first = jnp.pad(state, [(0, 0)] * 3 + [(0, k)])[:, None]
    groups = jnp.concatenate([first, places[-1][:, :-1]], axis=1)
    reach, of_own = 1, np.arange(v + k)[None, None, None, None] < v
    while reach < groups.shape[1]:
        further = _matmul(groups[:, reach:, ..., v:], groups[:, :-reach]) + jnp.where(of_own, groups, 0.0)[:, reach:]
        groups = jnp.concatenate([groups[:, :reach], further], axis=1)
        reach *= 2
    before, last = groups[..., :v], places[-1][:, -1]
    after = _matmul(last[..., v:], before[:, -1]) + last[..., :v]
    if len(places) > 1:
        inner = jnp.stack(places[:-1], axis=2)
        inner = _matmul(inner[..., v:], before[:, :, None]) + inner[..., :v]
        before = jnp.concatenate([before[:, :, None], inner], axis=2).reshape(len(state), -1, *state.shape[1:])
    return before[:, : own.shape[1]], after


def _stretches(kept: jax.Array, made: jax.Array) -> list[jax.Array]:
    """For each position in a group of chunks: sum and matrix of the group up to there, (b, groups, h, k, v + k)."""
    n, h, k, width = made.shape[1:]
    size, v = min(GROUP, n), width - k
    missing = -n % size
    made = jnp.pad(made, [(0, 0), (0, missing)] + [(0, 0)] * 3).reshape(len(made), -1, size, h, k, width)
    kept = jnp.pad(kept, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=1.0)
    diagonal = kept.reshape(*made.shape[:-1], 1) * np.eye(k, width, v, np.float32).reshape(1, 1, 1, 1, k, width)
    places = [made[:, :, 0] + diagonal[:, :, 0]]
    for i in range(1, size):
        own = jnp.pad(made[:, :, i, ..., :v], [(0, 0)] * 4 + [(0, k)])
        places.append(_matmul(made[:, :, i, ..., v:] + diagonal[:, :, i, ..., v:], places[-1]) + own)
    return places


def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum("...ij,...jk->...ik", x, y, precision=lax.Precision.HIGHEST)


def _affine_forward(kept: jax.Array, change: jax.Array, own: jax.Array, state: jax.Array) -> tuple:
    before, after = states_before_affine(kept, change, own, state)
    return (before, after), (kept, change, before)


def _affine_backward(saved: tuple, cotangents: tuple) -> tuple[jax.Array, ...]:
    kept, change, before = saved
    d_before, d_after = cotangents
    reverse = kept[:, ::-1], change[:, ::-1].swapaxes(-1, -2), d_before[:, ::-1]
    d_own, d_state = states_before_affine(*reverse, d_after)
    d_own = d_own[:, ::-1]
    d_change = jnp.einsum("bnhik,bnhjk->bnhij", d_own, before, precision=lax.Precision.HIGHEST)
    return (d_own * before).sum(-1), d_change, d_own, d_state


states_before_affine.defvjp(_affine_forward, _affine_backward)
