"""wkv4 on a mesh: batch and channels shared out, each device with whole sequences.

A kernel cannot be partitioned by the compiler, so each device calls its own. Rows and channels are independent: no
communication, but for the gradients of w and u.
"""

import functools
import math

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.wkv4 import xla
from pallas_kernels.wkv4.api import check, scan_kept
from pallas_kernels.wkv4.backends import BACKENDS
from pallas_kernels.wkv4.state import Wkv4State


def sharded_wkv4(
    k: jax.Array,
    v: jax.Array,
    w: jax.Array,
    u: jax.Array,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    channel_axes: tuple[str, ...] = (),
    segment_ids: jax.Array | None = None,
    initial_state: Wkv4State | None = None,
    return_state: bool = False,
    implementation: str | None = None,
):
    """`wkv4` with each device on its share; arguments and results as there, shapes global.

    Args:
      k, v, w, u: as for `wkv4`.
      mesh: None: the one in context (`jax.set_mesh`). Over its axes not named here everything is replicated, and
        gradients are averaged by an all-reduce: name all axes of more than one device.
      batch_axes, channel_axes: mesh axes that share out the batch and the channels, each evenly.
      segment_ids, initial_state, return_state, implementation: as for `wkv4`; states are sharded over batch and
        channels.

    Raises:
      ValueError: no mesh, an unknown axis, or a dimension that its axes do not divide.
    """
    check(k, v, w, u, segment_ids, initial_state)
    if implementation not in (None, *BACKENDS):
        names = ", ".join(BACKENDS)
        raise ValueError(f"sharded_wkv4: implementation={implementation!r} must be one of {names}, or None")
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    _check_axes(mesh, k.shape, batch_axes, channel_axes)
    tokens, channels, states = P(batch_axes, None, channel_axes), P(channel_axes), P(batch_axes, channel_axes)
    return jax.shard_map(
        functools.partial(scan_kept, return_state=return_state, implementation=implementation),
        mesh=mesh,
        in_specs=(tokens, tokens, channels, channels, P(batch_axes), states),
        out_specs=(tokens, states) if return_state else tokens,
        check_vma=False,
    )(k, v, w, u, xla.keep_of(segment_ids), initial_state)


def _check_axes(mesh, shape: tuple[int, ...], batch_axes: tuple[str, ...], channel_axes: tuple[str, ...]) -> None:
    op = "sharded_wkv4"
    if mesh.empty:
        raise ValueError(f"{op}: no mesh; pass mesh= or enter jax.set_mesh")
    unknown = [name for name in (*batch_axes, *channel_axes) if name not in mesh.shape]
    if unknown:
        raise ValueError(f"{op}: axes {unknown} are not of the mesh {dict(mesh.shape)}")
    for what, names, size in (("batch", batch_axes, shape[0]), ("channels", channel_axes, shape[2])):
        devices = math.prod(mesh.shape[name] for name in names)
        if size % devices:
            raise ValueError(f"{op}: {what} {size} must be a multiple of {devices}, the size of {names}")
