"""Mesh, and one table from logical axes to mesh axes for parameters and activations.

Every parameter names its logical axes (`logical_axes` metadata). A dimension that its mesh axes do not divide is not
sharded. The mesh has `AxisType.Auto`: the compiler chooses shardings without a constraint.
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
"""Axes from the least to the most communication; devices along the last axis are neighbours."""

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
    """Makes the mesh `data x fsdp x sequence x tensor` over `devices` (None: all).

    Raises `ValueError` unless the product of the sizes is the number of devices.
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
    """Applies the table to one array, whose trailing dimensions are `axes`; leading ones are stacked layers.

    A dimension is not sharded if its mesh axes do not divide it or are not in the mesh.
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
    """Constrains the sharding of an activation by logical axes; no-op without a mesh or in a `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(x.shape, axes, mesh))


def sequence_devices(n_tokens: int) -> int:
    """Number of devices of the mesh over which `n_tokens` of a sequence are sharded.

    1: not sharded (no mesh, inside a `shard_map`, no tokens, or a length that the devices do not divide).
    """
    mesh = jax.sharding.get_abstract_mesh()
    devices = math.prod(mesh.shape.get(name, 1) for name in RULES["time"])
    return devices if n_tokens and n_tokens % devices == 0 and not mesh.manual_axes else 1


Shaped = jax.Array | jax.ShapeDtypeStruct


def on_mesh(plain: Callable[..., Any], sharded: Callable[..., Any], q: Shaped, k: Shaped) -> Callable[..., Any]:
    """Chooses the form of a kernel op for q (b, t, h, .) and k (b, t, g, .) in the current mesh.

    `sharded`, on each device's share of batch, time and heads, because the compiler cannot partition a kernel. `plain`
    without a mesh, inside a `shard_map`, for one token, or if the table's axes are not all of the mesh or do not divide
    batch and heads; it runs no kernel that the compiler would have to partition. If time is sharded, always `sharded`.
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
