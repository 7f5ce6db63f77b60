"""Gated linear attention on a mesh. A kernel cannot be partitioned by the compiler, so each device calls its own.

Batch and heads are independent: no communication. A sharded sequence passes states only. With U the state that a part
reaches from zeros and F = exp of the sum of its log decays, a part starts from the sum over the parts before it: an
exclusive prefix of (F, U), in log2(n) + 1 exchanges between parts at distance 1, 2, 4, ... Documents need nothing more:
they are decays of 0.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.gated_linear_attention import xla
from pallas_kernels.gated_linear_attention.api import check, gated_linear_attention
from pallas_kernels.layout import make_layout


def sharded_gated_linear_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    sequence_axis: str | None = None,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    **options,
):
    """`gated_linear_attention` with each device on its share; arguments and results as there, shapes global.

    Args:
      q, k, v, log_decay: as for `gated_linear_attention`. A single head of q and k is copied to all devices.
      mesh: None: the one in context (`jax.set_mesh`). Over its axes not named here everything is replicated, and
        gradients are averaged by an all-reduce: name all axes of more than one device.
      batch_axes, head_axes: mesh axes that share out the batch and the heads, each evenly.
      sequence_axis: mesh axis that shares out time, evenly; None: every device sees whole sequences.
      segment_ids, initial_state, return_state: as for `gated_linear_attention`; states are sharded over batch and
        heads and replicated over `sequence_axis`.
      **options: scale and implementation of `gated_linear_attention`.

    Raises:
      ValueError: no mesh, an unknown axis, or a dimension that its axes do not divide.
    """
    check(q, k, v, log_decay, segment_ids, initial_state)
    layout = make_layout(
        "sharded_gated_linear_attention", mesh, v, k,
        batch_axes=batch_axes, head_axes=head_axes, sequence_axis=sequence_axis,
    )  # fmt: skip
    if segment_ids is not None:
        decays = log_decay if log_decay.ndim == 4 else log_decay[..., None]
        log_decay = xla.with_resets(decays.astype(jnp.float32), segment_ids).reshape(log_decay.shape)
    run = functools.partial(gated_linear_attention, return_state=return_state, **options)
    if sequence_axis is not None:
        run = functools.partial(_part, run, sequence_axis, layout.mesh.shape[sequence_axis])

    def local(q, k, v, log_decay, initial_state):
        return run(q, k, v, log_decay, initial_state=initial_state)

    states = P(layout.batch, layout.heads)
    return jax.shard_map(
        local,
        mesh=layout.mesh,
        in_specs=(layout.keys, layout.keys, layout.queries, layout.queries, states),
        out_specs=(layout.queries, states) if return_state else layout.queries,
        check_vma=False,
    )(q, k, v, log_decay, initial_state)


def _part(run, axis: str, n: int, q, k, v, log_decay, *, initial_state):
    """The part of this device along `axis`, of n; the final state is that of the last part, on every device."""
    index = lax.axis_index(axis)
    own = xla.forward(q, k, v, log_decay, None)[1]
    kept = jnp.exp(log_decay.astype(jnp.float32).sum(1)).reshape(*own.shape[:2], -1, 1)

    def from_before(distance: int):
        """(F, U) of the part `distance` earlier, of nothing where there is none."""
        pairs = [(i, i + distance) for i in range(n - distance)]
        factor, state = (lax.ppermute(x, axis, pairs) for x in (kept, own))
        return jnp.where(index >= distance, factor, jnp.ones_like(factor)), state

    distance = 1
    while distance < n:
        factor, state = from_before(distance)
        own, kept, distance = own + kept * state, kept * factor, 2 * distance
    factor, start = from_before(1)
    if initial_state is not None:
        start = start + factor * initial_state
    found = run(q, k, v, log_decay, initial_state=start)
    if not isinstance(found, tuple):
        return found
    y, state = found
    return y, lax.psum(jnp.where(index == n - 1, state, jnp.zeros_like(state)), axis)
