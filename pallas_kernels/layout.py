"""Ops on a mesh: each device runs the op on its part of batch, time, and heads or channels (`jax.shard_map`).

The compiler cannot partition a kernel. Rows, heads and channels are independent and need no communication; parts of a
sequence exchange states. The `sharded_` functions take the arguments of their op (shapes are global) and

    mesh            None: the mesh in context (`jax.set_mesh`). Along axes that are not named below everything is
                    replicated, and gradients are averaged by an all-reduce: name every axis of more than one device.
    batch_axes, head_axes, channel_axes
                    mesh axes over which batch, heads or channels are split evenly
    sequence_axis   mesh axis over which time is split evenly; None: every device has whole sequences. States are
                    sharded over batch and heads or channels, and replicated over this axis.

They raise ValueError for a missing mesh, an unknown axis, or a dimension that is not a multiple of its axes' devices.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P


class Layout(NamedTuple):
    """Mesh, and the axes that split each dimension."""

    mesh: Mesh | AbstractMesh
    batch: tuple[str, ...]
    time: tuple[str, ...]
    heads: tuple[str, ...]
    kv_heads: tuple[str, ...]
    """Same as heads; () for a single key/value head, which every device holds."""

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
    """Layout of q (b, t, h, .) and k (b, t, g, .); `op` is named in errors."""
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
    """Mesh, checked against `shares`: dimension -> its size, and the axes that split it."""
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
    """Calls `run` on the part of each device."""
    return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)(*arrays)


def part_of_sequence(
    run: Callable, own: Any, kept: jax.Array | None, initial: Any, *, axis: str, parts: int, return_state: bool
) -> Any:
    """Runs the part of a sequence on this device: `run(state before it)` -> y, or (y, state).

    The final state is the last part's, on every device. Other arguments: as for `state_before`.
    """
    found = run(state_before(own, kept, initial, axis=axis, parts=parts))
    if not return_state:
        return found
    y, state = found
    return y, of_last_part(state, axis=axis, parts=parts)


def state_before(own: Any, kept: jax.Array | None, initial: Any, *, axis: str, parts: int) -> Any:
    """State before the part of a sequence on this device: an exclusive prefix of (kept, own).

    It takes log2(parts) + 1 exchanges between parts at distance 1, 2, 4, ...

    Args:
      own: state that this part reaches from zeros, arrays (b, heads or channels, ...).
      kept: decay factor of a state over this part, shaped like the first axes of `own`; None: 1.
      initial: state before the first part; None: zeros.
      axis, parts: mesh axis of the parts, and its size.
    """
    index = lax.axis_index(axis)

    def from_before(distance: int) -> tuple[Any, Any]:
        """(kept, own) of the part `distance` earlier; (1, 0) if there is none."""
        pairs = [(i, i + distance) for i in range(parts - distance)]
        factor, state = jax.tree.map(lambda x: lax.ppermute(x, axis, pairs), (kept, own))
        return None if factor is None else jnp.where(index >= distance, factor, jnp.ones_like(factor)), state

    distance = 1
    while distance < parts:
        factor, state = from_before(distance)
        own = _add_decayed(own, kept, state)
        kept = None if kept is None else kept * factor
        distance *= 2
    factor, start = from_before(1)
    return start if initial is None else _add_decayed(start, factor, initial)


def _add_decayed(state: Any, factor: jax.Array | None, earlier: Any) -> Any:
    """Returns state + factor * earlier."""
    if factor is None:
        return jax.tree.map(jnp.add, state, earlier)
    return jax.tree.map(
        lambda x, y: x + factor.reshape(*factor.shape, *[1] * (y.ndim - factor.ndim)) * y, state, earlier
    )


def of_last_part(tree: Any, *, axis: str, parts: int) -> Any:
    """Copies arrays of the last part of a sequence to every device."""
    last = lax.axis_index(axis) == parts - 1
    return jax.tree.map(lambda x: lax.psum(jnp.where(last, x, jnp.zeros_like(x)), axis), tree)
