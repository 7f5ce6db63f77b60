"""Mesh and sharding: one table from logical axes to mesh axes, used by parameters and activations alike.

Every parameter names its logical axes where it is made (`logical_axes` metadata); the table below says
which mesh axes carry them. A dimension that its mesh axes do not divide stays whole. The mesh is always of
`AxisType.Auto`: the compiler places everything that no constraint fixes.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxzoo.config.checked import Checked, Rule

LOGICAL_AXES = "logical_axes"
"""Key of the parameter metadata that holds its logical axes: a tuple of names or None, one per dimension."""

MESH_AXES = ("data", "fsdp", "sequence", "tensor")
"""From the axis that talks least to the one that talks most: the last one's devices are neighbours."""

RULES: Mapping[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "time": ("sequence",),
    "embed": ("fsdp",),
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "mlp": ("tensor",),
    "channels": ("tensor",),
    "channels_of_sequences": ("tensor", "sequence"),
    "layers": (),
}
"""Logical axis -> mesh axes. `time` counts the tokens of activations, `embed` is the model width, `heads` heads times
head width, `mlp` the hidden width of an MLP, `channels` the width of an elementwise branch (a gated convolution),
`channels_of_sequences` the same where each device has whole sequences of its channels (a long convolution), `layers`
the stacked periods."""


DeviceCount = Annotated[int, Rule("must be positive, or -1: the devices that are left", -1, 2**31 - 1, excluded=(0,))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig(Checked):
    """Shape of the device mesh. One entry may be -1: all remaining devices."""

    data: DeviceCount = -1
    """Devices over which the batch is sharded, each with a full copy of the parameters."""
    fsdp: DeviceCount = 1
    """Devices over which the batch is sharded, and parameters and optimizer state along the model width."""
    tensor: DeviceCount = 1
    """Devices over which heads, hidden units and the vocabulary are sharded."""
    sequence: DeviceCount = 1
    """Devices over which the tokens of every sequence are sharded."""

    def __post_init__(self) -> None:
        if dataclasses.astuple(self).count(-1) > 1:
            raise ValueError(f"MeshConfig: {self}: at most one may be -1 (the devices that the others leave)")

    def __str__(self) -> str:
        return " ".join(f"{name}={getattr(self, name)}" for name in MESH_AXES)


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Makes the mesh `data x fsdp x sequence x tensor` over `devices`; None: all.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    sizes = [getattr(config, name) for name in MESH_AXES]
    n_devices = jax.device_count() if devices is None else len(devices)
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes:
        sizes[sizes.index(-1)] = n_devices // known
    if math.prod(sizes) != n_devices:
        raise ValueError(
            f"MeshConfig: {config} does not fit {n_devices} devices; the product must be {n_devices} (one entry may "
            "be -1)"
        )
    axis_types = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes), MESH_AXES, axis_types=axis_types, devices=devices)


def partition_spec(shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """The table applied to one array: `axes` names its trailing dimensions, leading ones are stacked layers.

    A dimension that the product of its mesh axes does not divide is left whole, and so is one whose axes a mesh of
    the user's own does not have.
    """
    padded = ("layers",) * (len(shape) - len(axes)) + axes
    entries: list[tuple[str, ...] | None] = []
    for size, axis in zip(shape, padded, strict=True):
        names = tuple(name for name in RULES[axis] if name in mesh.shape) if axis is not None else ()
        divides = size % math.prod(mesh.shape[name] for name in names) == 0
        entries.append(names if names and divides else None)
    return PartitionSpec(*entries)


def mesh_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of one dimension of a spec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def named_sharding(shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh) -> NamedSharding:
    """`partition_spec` on its mesh."""
    return NamedSharding(mesh, partition_spec(shape, axes, mesh))


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Fixes the layout of an activation by logical axes, one per dimension.

    `x` itself without a mesh, and inside a `shard_map`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(x.shape, axes, mesh))


def sequence_devices(n_tokens: int) -> int:
    """Devices of the current mesh over which `n_tokens` of every sequence are sharded; 1: each has all of them.

    That is so without a mesh, inside a `shard_map`, for a length that they do not divide, and for no tokens.
    """
    mesh = jax.sharding.get_abstract_mesh()
    devices = math.prod(mesh.shape.get(name, 1) for name in RULES["time"])
    return devices if n_tokens and n_tokens % devices == 0 and not mesh.manual_axes else 1


Shaped = jax.Array | jax.ShapeDtypeStruct


def on_mesh(plain: Callable[..., Any], sharded: Callable[..., Any], q: Shaped, k: Shaped) -> Callable[..., Any]:
    """The form of a kernel op for q (b, t, h, .) and k (b, t, g, .) in the current mesh; `plain` for one token.

    It is `sharded`, each device on its share of batch, time and heads, because the compiler cannot partition a kernel.
    Without a mesh, inside a `shard_map`, or where the table's axes are not all of the mesh or do not divide batch and
    heads, it is `plain`, which runs no kernel where the compiler would have to partition it. Where time is shared out,
    what does not divide stays whole, and it is `sharded` all the same.
    """
    mesh = jax.sharding.get_abstract_mesh()
    wide = {name for name, size in mesh.shape.items() if size > 1}
    batch_axes, head_axes, time_axes = (
        tuple(n for n in RULES[axis] if n in wide) for axis in ("batch", "heads", "time")
    )
    if q.ndim < 4 or not wide or mesh.manual_axes or wide != {*batch_axes, *head_axes, *time_axes}:
        return plain
    rows, heads = (math.prod(mesh.shape[name] for name in names) for names in (batch_axes, head_axes))
    b, t, h, _ = q.shape
    g = k.shape[2]
    rows_divide = b % rows == 0
    heads_divide = h % heads == 0 and (g == 1 or g % heads == 0)
    options = {}
    if sequence_devices(t) > 1:
        batch_axes, head_axes = batch_axes if rows_divide else (), head_axes if heads_divide else ()
        options = {"sequence_axis": time_axes[0]}
    elif time_axes or not (rows_divide and heads_divide):
        return plain
    narrow = tuple(name for name in mesh.shape if name not in wide)  # left out, they would be averaged over
    return functools.partial(sharded, batch_axes=(*batch_axes, *narrow), head_axes=head_axes, **options)


def row_devices(mesh: Mesh | AbstractMesh) -> int:
    """Number of devices over which the rows of a batch are sharded."""
    return mesh.shape["data"] * mesh.shape["fsdp"]
