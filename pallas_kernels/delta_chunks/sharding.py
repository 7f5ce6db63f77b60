"""The recurrence over chunks on a mesh: batch and heads shared out, each device with whole sequences."""

from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.delta_chunks.api import check, delta_chunks
from pallas_kernels.layout import make_layout


def sharded_delta_chunks(
    x: jax.Array,
    read: jax.Array,
    write: jax.Array,
    mix: jax.Array,
    keep: jax.Array,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    implementation: str | None = None,
):
    """`delta_chunks` with each device on its share; arguments and results as there, shapes global.

    Args:
      x, read, write, mix, keep: as for `delta_chunks`.
      mesh: None: the one in context (`jax.set_mesh`). Over its axes not named here everything is replicated, and
        gradients are averaged by an all-reduce: name all axes of more than one device.
      batch_axes, head_axes: mesh axes that share out the batch and the heads, each evenly.
      initial_state, return_state, implementation: as for `delta_chunks`.

    Raises:
      ValueError: no mesh, an unknown axis, or a dimension that its axes do not divide.
    """
    check(x, read, write, mix, keep, initial_state)
    layout = make_layout(
        "sharded_delta_chunks", mesh, x, read, batch_axes=batch_axes, head_axes=head_axes, sequence_axis=None
    )

    options: Any = {"return_state": return_state, "implementation": implementation}

    def local(x, read, write, mix, keep, initial_state):
        return delta_chunks(x, read, write, mix, keep, initial_state=initial_state, **options)

    arrays, states = P(layout.batch, None, layout.heads), P(layout.batch, layout.heads)
    return jax.shard_map(
        local,
        mesh=layout.mesh,
        in_specs=(*[arrays] * 5, states),
        out_specs=(arrays, states) if return_state else arrays,
        check_vma=False,
    )(x, read, write, mix, keep, initial_state)
