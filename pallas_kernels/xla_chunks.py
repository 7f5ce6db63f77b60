"""Recurrences in XLA on accelerators: many chunks of a sequence at once, which takes few launches."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.dispatch import may_run_on

STATES_AT_ONCE = 2**27
"""Numbers, per device, in the states of the chunks that an accelerator computes at once; longer sequences are cut."""


def product(spec: str, x: jax.Array, y: jax.Array, *, precision: lax.Precision) -> jax.Array:
    """Returns `einsum(spec, x, y)`, float32. Where `precision` allows it, operands are bfloat16 on an accelerator: half
    the bytes between kernels."""
    if precision == lax.Precision.DEFAULT and not may_run_on("cpu"):
        x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    return jnp.einsum(spec, x, y, precision=precision, preferred_element_type=jnp.float32)


def chunks_at_once(chunks: int, numbers: int) -> int:
    """Chunks that an accelerator computes at once, each with so many numbers of states."""
    mesh = jax.sharding.get_abstract_mesh()  # inside of a shard_map the numbers are those of one device
    devices = math.prod(size for name, size in mesh.shape.items() if name not in mesh.manual_axes)
    most = STATES_AT_ONCE * devices // max(numbers, 1)
    return max(1, min(chunks, most))


def tokens_at_once(t: int, numbers: int, *, least: int) -> int:
    """Tokens of a chunk in which every token has a state of so many numbers: `least`, on a GPU as many as it allows."""
    return max(least, chunks_at_once(t, numbers)) if may_run_on("cuda") else least


def states_before(state: Any, own: Any, kept: jax.Array | None, *, reverse: bool = False) -> tuple[Any, Any]:
    """The state before every chunk, and after the last one.

    Every chunk multiplies the state by a factor and adds its own sum; an associative scan puts the chunks together.

    Args:
      state: before the first chunk, arrays (b, h, ...).
      own: what every chunk adds, arrays (b n, h, ...) of n chunks of each row.
      kept: factors (b n or 1, h or 1, ...) of the states, with their first axes; None: 1.
      reverse: from the last chunk to the first: a cotangent after every chunk, and before the first one.

    Returns:
      arrays (b n, h, ...) and (b, h, ...).
    """
    rows, b = len(jax.tree.leaves(own)[0]), len(jax.tree.leaves(state)[0])
    by_chunk = lambda x: x.reshape(b, rows // b, *x.shape[1:])  # noqa: E731
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
