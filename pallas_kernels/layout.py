"""How the arrays of an attention lie on a mesh: batch, time and heads, each shared out over axes of its own."""

import math
from typing import NamedTuple

import jax
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


def make_layout(
    op: str,
    mesh: Mesh | AbstractMesh | None,
    q: jax.Array,
    k: jax.Array,
    *,
    batch_axes: tuple[str, ...],
    head_axes: tuple[str, ...],
    sequence_axis: str | None,
) -> Layout:
    """The layout of q (b, t, h, .) and k (b, t, g, .); mesh None: the one in context. `op` is named in errors.

    Raises:
      ValueError: no mesh, an unknown axis, or a dimension that its axes do not divide.
    """
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    sequence_axes = () if sequence_axis is None else (sequence_axis,)
    if mesh.empty:
        raise ValueError(f"{op}: no mesh; pass mesh= or enter jax.set_mesh")
    unknown = [name for name in (*batch_axes, *head_axes, *sequence_axes) if name not in mesh.shape]
    if unknown:
        raise ValueError(f"{op}: axes {unknown} are not of the mesh {dict(mesh.shape)}")
    kv_axes = () if k.shape[2] == 1 else head_axes
    named = (("batch", batch_axes), ("time", sequence_axes), ("query heads", head_axes), ("key/value heads", kv_axes))
    for (name, axes), size in zip(named, (*q.shape[:3], k.shape[2]), strict=True):
        devices = math.prod(mesh.shape[axis] for axis in axes)
        if size % devices:
            raise ValueError(f"{op}: {name} {size} must be a multiple of {devices}, the size of {axes}")
    return Layout(mesh, batch_axes, sequence_axes, head_axes, kv_axes)
