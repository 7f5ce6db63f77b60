"""The selective scan on a mesh. A kernel cannot be partitioned by the compiler, so each device calls its own.

Rows and channels are independent: no communication, but for the gradients of what they share, b, c and a. A sharded
sequence passes states only. With U the state that a part reaches from zeros and F = exp(a sum of delta) the decay of
the whole part, a part starts from the sum over the parts before it: an exclusive prefix of (F, U), in log2(n) + 1
exchanges between parts at distance 1, 2, 4, ... F is 0 where a document begins within the part.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.selective_scan import xla
from pallas_kernels.selective_scan.api import check, scan_kept
from pallas_kernels.selective_scan.backends import BACKENDS


def sharded_selective_scan(
    x: jax.Array,
    delta: jax.Array,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    channel_axes: tuple[str, ...] = (),
    sequence_axis: str | None = None,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    implementation: str | None = None,
):
    """`selective_scan` with each device on its share; arguments and results as there, shapes global.

    Args:
      x, delta, a, b, c: as for `selective_scan`. Every device that shares out channels has all of b and c.
      mesh: None: the one in context (`jax.set_mesh`). Over its axes not named here everything is replicated, and
        gradients are averaged by an all-reduce: name all axes of more than one device.
      batch_axes, channel_axes: mesh axes that share out the batch and the channels, each evenly.
      sequence_axis: mesh axis that shares out time, evenly; None: every device sees whole sequences.
      segment_ids, initial_state, return_state, implementation: as for `selective_scan`; states are sharded over batch
        and channels and replicated over `sequence_axis`.

    Raises:
      ValueError: no mesh, an unknown axis, or a dimension that its axes do not divide.
    """
    check(x, delta, a, b, c, segment_ids, initial_state)
    if implementation not in (None, *BACKENDS):
        names = ", ".join(BACKENDS)
        raise ValueError(f"sharded_selective_scan: implementation={implementation!r} must be one of {names}, or None")
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    times = () if sequence_axis is None else (sequence_axis,)
    _check_axes(mesh, x.shape, (batch_axes, times, channel_axes))
    run = functools.partial(scan_kept, return_state=return_state, implementation=implementation)
    if sequence_axis is not None:
        run = functools.partial(_part, run, sequence_axis, mesh.shape[sequence_axis])
    # Before the shares are cut: a document may begin at the first token of one.
    keep = xla.keep_of(segment_ids)
    tokens, maps, states = P(batch_axes, times, channel_axes), P(batch_axes, times), P(batch_axes, channel_axes)
    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(tokens, tokens, P(channel_axes), maps, maps, maps, states),
        out_specs=(tokens, states) if return_state else tokens,
        check_vma=False,
    )(x, delta, a, b, c, keep, initial_state)


def _check_axes(mesh, shape: tuple[int, ...], axes: tuple[tuple[str, ...], ...]) -> None:
    op = "sharded_selective_scan"
    if mesh.empty:
        raise ValueError(f"{op}: no mesh; pass mesh= or enter jax.set_mesh")
    unknown = [name for names in axes for name in names if name not in mesh.shape]
    if unknown:
        raise ValueError(f"{op}: axes {unknown} are not of the mesh {dict(mesh.shape)}")
    for what, names, size in zip(("batch", "time", "channels"), axes, shape, strict=True):
        devices = math.prod(mesh.shape[name] for name in names)
        if size % devices:
            raise ValueError(f"{op}: {what} {size} must be a multiple of {devices}, the size of {names}")


def _part(run, axis: str, n: int, x, delta, a, b, c, keep, initial_state):
    """The part of this device along `axis`, of n; the final state is that of the last part, on every device."""
    index = lax.axis_index(axis)
    kept = jnp.exp(delta.astype(jnp.float32).sum(1)[..., None] * a.astype(jnp.float32)[None])
    if keep is not None:
        kept = kept * lax.stop_gradient(keep.prod(1))[:, None, None]
    own = xla.forward(x, delta, a.astype(jnp.float32), b, c, keep, None)[1]

    def from_before(distance: int):
        """(F, U) of the part `distance` earlier, of nothing where there is none."""
        pairs = [(i, i + distance) for i in range(n - distance)]
        factor, state = (lax.ppermute(z, axis, pairs) for z in (kept, own))
        return jnp.where(index >= distance, factor, jnp.ones_like(factor)), state

    distance = 1
    while distance < n:
        factor, state = from_before(distance)
        own, kept, distance = own + kept * state, kept * factor, 2 * distance
    factor, start = from_before(1)
    if initial_state is not None:
        start = start + factor * initial_state
    found = run(x, delta, a, b, c, keep, start)
    if not isinstance(found, tuple):
        return found
    y, state = found
    return y, lax.psum(jnp.where(index == n - 1, state, jnp.zeros_like(state)), axis)
