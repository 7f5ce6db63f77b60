"""The UT transform on a mesh: batch and heads shared out, each device with whole sequences."""

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.layout import make_layout
from pallas_kernels.ut_transform.api import CHUNK, Transformed, check, check_scores, ut_inverse, ut_transform
from pallas_kernels.ut_transform.values import check_values, delta_values


def sharded_ut_transform(
    k: jax.Array,
    beta: jax.Array,
    log_decay: jax.Array | None = None,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    chunk_size: int = CHUNK,
    implementation: str | None = None,
) -> Transformed:
    """`ut_transform` with each device on its share; arguments and results as there, shapes global.

    Args:
      k, beta, log_decay: as for `ut_transform`.
      mesh: None: the one in context (`jax.set_mesh`). Over its axes not named here everything is replicated, and
        gradients are averaged by an all-reduce: name all axes of more than one device.
      batch_axes, head_axes: mesh axes that share out the batch and the heads, each evenly.
      chunk_size, implementation: as for `ut_transform`.

    Raises:
      ValueError: no mesh, an unknown axis, or a dimension that its axes do not divide.
    """
    check(k, beta, log_decay, chunk_size)
    layout = make_layout(
        "sharded_ut_transform", mesh, k, k, batch_axes=batch_axes, head_axes=head_axes, sequence_axis=None
    )

    def local(k, beta, log_decay):
        return ut_transform(k, beta, log_decay, chunk_size=chunk_size, implementation=implementation)

    spec = P(layout.batch, None, layout.heads)
    form = jax.shard_map(local, mesh=layout.mesh, in_specs=(spec, spec, spec), out_specs=spec, check_vma=False)
    return form(k, beta, log_decay)


def sharded_ut_inverse(
    scores: jax.Array,
    beta: jax.Array | None = None,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    implementation: str | None = None,
) -> jax.Array:
    """`ut_inverse` likewise."""
    check_scores(scores, beta)
    layout = make_layout(
        "sharded_ut_inverse", mesh, scores, scores, batch_axes=batch_axes, head_axes=head_axes, sequence_axis=None
    )

    def local(scores, beta):
        return ut_inverse(scores, beta, implementation=implementation)

    spec = P(layout.batch, None, layout.heads)
    form = jax.shard_map(local, mesh=layout.mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False)
    return form(scores, beta)


def sharded_delta_values(
    k: jax.Array,
    v: jax.Array,
    beta: jax.Array,
    log_decay: jax.Array | None = None,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    initial_state: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`delta_values` likewise."""
    check_values(k, v, beta, log_decay)
    layout = make_layout(
        "sharded_delta_values", mesh, k, v, batch_axes=batch_axes, head_axes=head_axes, sequence_axis=None
    )

    def local(k, v, beta, log_decay, state):
        return delta_values(k, v, beta, log_decay, initial_state=state, implementation=implementation)

    spec, states = P(layout.batch, None, layout.heads), P(layout.batch, layout.heads)
    form = jax.shard_map(
        local, mesh=layout.mesh, in_specs=(*[spec] * 4, states), out_specs=(spec, spec), check_vma=False
    )
    return form(k, v, beta, log_decay, initial_state)
