"""Taylor attention on a mesh. A kernel cannot be partitioned by the compiler, so each device calls its own.

Batch and heads are independent: no communication. A sharded sequence of n equal parts passes states only. With
U_i the state of part i from zeros, m its number of tokens, G = decay^m,

    start_i = sum_{j < i} G^(i-1-j) U_j + G^i initial                     (an exclusive prefix sum)

takes log2(n) + 1 exchanges of one state between neighbours at distance 1, 2, 4, ..; then every part runs as
usual from its start. The state of a part costs features * v operations per token, a fifth of a forward pass.

Packed documents: a part keeps the state before it only where a document spans it (else G = 0), and starts from zeros
where one begins. "xla" runs it: the kernels take no documents with a state.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.layout import make_layout, of_last_part, on_shares
from pallas_kernels.taylor_attention import xla
from pallas_kernels.taylor_attention.api import attend, check_segments
from pallas_kernels.taylor_attention.state import TaylorState


def sharded_taylor_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    sequence_axis: str | None = None,
    decay: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    initial_state: TaylorState | None = None,
    return_state: bool = False,
    **options,
):
    """`taylor_attention` with each device on its share; arguments and results as there, shapes global.

    Args:
      q, k, v: as for `taylor_attention`. A single key/value head is copied to all devices.
      mesh: None: the one in context (`jax.set_mesh`). Over its axes not named here everything is replicated, and
        gradients are averaged by an all-reduce: name all axes of more than one device.
      batch_axes, head_axes: mesh axes that share out the batch and the heads, each evenly.
      sequence_axis: mesh axis that shares out time, evenly; None: every device sees whole sequences.
      segment_ids: as for `taylor_attention`; with `sequence_axis` the implementation is "xla".
      decay, initial_state, return_state: as for `taylor_attention`; states are sharded over batch and heads and
        replicated over `sequence_axis`.
      **options: scale, eps, normalize, chunk_size and implementation of `taylor_attention`.

    Raises:
      ValueError: no mesh, an unknown axis, a dimension that its axes do not divide, or segment_ids with sequence_axis
        and another implementation than "xla".
    """
    op = "sharded_taylor_attention"
    layout = make_layout(op, mesh, q, k, batch_axes=batch_axes, head_axes=head_axes, sequence_axis=sequence_axis)
    check_segments(q.shape, segment_ids, stateful=initial_state is not None or return_state)
    if segment_ids is not None and sequence_axis is not None and options.setdefault("implementation", "xla") != "xla":
        raise ValueError(
            f"{op}: segment_ids with sequence_axis={sequence_axis!r} need implementation='xla': kernels take no "
            "documents with the states that parts pass on"
        )
    if segment_ids is not None and sequence_axis is not None:
        begins = segment_ids != jnp.roll(segment_ids, 1, axis=1)
        segment_ids = jnp.cumsum(begins, axis=1, dtype=jnp.int32)  # an id may return as another document
    states = layout.states
    run = functools.partial(attend, **options)
    if sequence_axis is not None:
        run = functools.partial(_sequence_part, run, sequence_axis, layout.mesh.shape[sequence_axis])

    def local(q, k, v, decay, segment_ids, initial_state):
        options = {"segment_ids": segment_ids, "initial_state": initial_state, "return_state": return_state}
        return run(q, k, v, decay=decay, **options)

    specs = layout.queries, layout.keys, layout.keys, P(head_axes), P(layout.batch, layout.time), states
    arrays = q, k, v, decay, segment_ids, initial_state
    return on_shares(local, layout.mesh, arrays, specs, (layout.queries, states) if return_state else layout.queries)


def _sequence_part(run, axis, n, q, k, v, *, decay, segment_ids, initial_state, return_state):
    """The part of this device along `axis`; the final state is that of the last part, on every device."""
    fixed = None if decay is None else jax.lax.stop_gradient(decay)
    local = xla.final_state(k, v, n_heads=q.shape[2], decay=fixed, segment_ids=segment_ids)
    start = _start(local, initial_state, decay, segment_ids, axis, n, q.shape[1])
    result = run(q, k, v, decay=decay, segment_ids=segment_ids, initial_state=start, return_state=return_state)
    if not return_state:
        return result
    y, state = result
    return y, of_last_part(state, axis=axis, parts=n)


def _start(local, initial_state, decay, segment_ids, axis, n, tokens):
    """The state before this part: prefix sums over windows of 1, 2, 4, .. parts, moved on by one part."""
    index = jax.lax.axis_index(axis)
    log_decay = None
    if decay is not None:
        tiny = jnp.finfo(jnp.float32).tiny
        log_decay = jax.lax.stop_gradient(jnp.log(jnp.maximum(decay.astype(jnp.float32), tiny)))

    def aged(state, parts):
        if log_decay is None:
            return state
        kept = jnp.exp(log_decay * jnp.asarray(parts * tokens, jnp.float32))
        return jax.tree.map(lambda x: x * kept.reshape(1, -1, *[1] * (x.ndim - 2)), state)

    def from_before(state, distance):
        """The state of the part `distance` earlier, zeros where there is none."""
        pairs = [(i, i + distance) for i in range(n - distance)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, axis, pairs), state)

    def of_document(state, place, distance):
        """A state from before, zeros in the rows whose token at `place` is of another document than its last one."""
        if segment_ids is None:
            return state
        same = from_before(segment_ids[:, -1], distance) == segment_ids[:, place]
        return jax.tree.map(lambda x: jnp.where(same.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros_like(x)), state)

    for distance in (2**i for i in range(math.ceil(math.log2(n)))):
        before = of_document(aged(from_before(local, distance), distance), -1, distance)
        local = jax.tree.map(jnp.add, local, before)
    start = of_document(from_before(local, 1), 0, 1)
    if initial_state is None:
        return start
    return jax.tree.map(jnp.add, start, aged(initial_state, index))
