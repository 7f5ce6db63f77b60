"""Ops on a mesh: batch, time and heads or channels are shared out, each over axes of its own.

The compiler cannot partition a kernel, so that each device calls its own (`jax.shard_map`). Rows, heads and channels
are independent and need no communication. Of a sharded sequence the parts exchange states.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P


class Layout(NamedTuple):
    """A mesh and the partitions on it."""

    mesh: Mesh | AbstractMesh
    batch: tuple[str, ...]
    time: tuple[str, ...]
    heads: tuple[str, ...]
    kv_heads: tuple[str, ...]
    """As heads; () for a single key/value head, which every device holds."""

    @property
    def queries(self) -> P:
        return P(self.batch, self.time, self.heads)

    @property
    def keys(self) -> P:
        return P(self.batch, self.time, self.kv_heads)

    @property
    def states(self) -> P:
        return P(self.batch, self.heads)


def make_layout(
    op: str,
    mesh: Mesh | AbstractMesh | None,
    q: jax.Array,
    k: jax.Array,
    *,
    batch_axes: tuple[str, ...],
    head_axes: tuple[str, ...],
    sequence_axis: str | None = None,
) -> Layout:
    """The layout of q (b, t, h, .) and k (b, t, g, .); mesh None: the one in context. `op` is named in errors.

    Raises:
      ValueError: no mesh, an unknown axis, or a dimension that its axes do not divide.
    """
    time = () if sequence_axis is None else (sequence_axis,)
    kv_axes = () if k.shape[2] == 1 else head_axes
    shares = {
        "batch": (q.shape[0], batch_axes),
        "time": (q.shape[1], time),
        "query heads": (q.shape[2], head_axes),
        "key/value heads": (k.shape[2], kv_axes),
    }
    return Layout(checked_mesh(op, mesh, shares), batch_axes, time, head_axes, kv_axes)


def checked_mesh(
    op: str, mesh: Mesh | AbstractMesh | None, shares: dict[str, tuple[int, tuple[str, ...]]]
) -> Mesh | AbstractMesh:
    """The mesh, None: the one in context. shares: name of a dimension -> its size, and the axes that share it out.

    Raises:
      ValueError: no mesh, an unknown axis, or a dimension that its axes do not divide.
    """
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    if mesh.empty:
        raise ValueError(f"{op}: no mesh; pass mesh= or enter jax.set_mesh")
    named = dict.fromkeys(name for _, axes in shares.values() for name in axes)
    unknown = [name for name in named if name not in mesh.shape]
    if unknown:
        raise ValueError(f"{op}: axes {unknown} are not of the mesh {dict(mesh.shape)}")
    for what, (size, axes) in shares.items():
        devices = math.prod(mesh.shape[name] for name in axes)
        if size % devices:
            raise ValueError(f"{op}: {what} {size} must be a multiple of {devices}, the size of {axes}")
    return mesh


def on_shares(run: Callable, mesh: Mesh | AbstractMesh, arrays: tuple, specs: tuple, out_specs: Any) -> Any:
    """`run` of the share of each device."""
    return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)(*arrays)


def state_before(own: jax.Array, kept: jax.Array, initial: jax.Array | None, *, axis: str, parts: int) -> jax.Array:
    """The state before the part of a sequence on this device, one of `parts` along a mesh axis.

    An exclusive prefix of (kept, own), in log2(parts) + 1 exchanges between parts at distance 1, 2, 4, ...

    Args:
      own: the state that this part reaches from zeros.
      kept: the factor by which it decays a state before it.
      initial: the state before the first part; None: zeros.
      axis: mesh axis of the parts.
      parts: its size.
    """
    index = lax.axis_index(axis)

    def from_before(distance: int) -> tuple[jax.Array, jax.Array]:
        """(kept, own) of the part `distance` earlier, of nothing where there is none."""
        pairs = [(i, i + distance) for i in range(parts - distance)]
        factor, state = (lax.ppermute(x, axis, pairs) for x in (kept, own))
        return jnp.where(index >= distance, factor, jnp.ones_like(factor)), state

    distance = 1
    while distance < parts:
        factor, state = from_before(distance)
        own = own + kept * state
        kept = kept * factor
        distance *= 2
    factor, start = from_before(1)
    return start if initial is None else start + factor * initial


def of_last_part(tree: Any, *, axis: str, parts: int) -> Any:
    """Arrays of the last part of a sequence, on every device."""
    last = lax.axis_index(axis) == parts - 1
    return jax.tree.map(lambda x: lax.psum(jnp.where(last, x, jnp.zeros_like(x)), axis), tree)
