"""The general form of the delta rule by the Hopper kernels of `pallas_kernels.delta_chunks.general_delta_rule`.

Documents are decays of 0, and vectors u of 0 at their first tokens, which read the state before the decay. u and z are
rounded to the dtype of v.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxzoo.array_typing import Array
from jaxzoo.sharding import on_mesh
from pallas_kernels.delta_chunks import general_backends as backends, general_delta_rule
from pallas_kernels.delta_chunks.general_xla import CHUNK
from pallas_kernels.delta_chunks.problem import GeneralProblem
from pallas_kernels.dispatch import may_run_by_default, mesh_objection
from pallas_kernels.gated_linear_attention.xla import with_resets

PACKAGES = ("delta_chunks", "gated_linear_attention", "ut_transform")
"""Those of whose code the kernels are made: all must be verified."""
Form = Callable[..., tuple[Array, Array]]


def kernel_form(q: Array, k: Array, v: Array) -> Form | None:
    """`by_kernels`, or its form for the current mesh, for queries, keys and values (b, t, h, .).

    None: the kernels do not serve the call, are not verified on the devices that this is traced for, or cannot run on
    this mesh.
    """
    if v.shape[1] == 0 or not q.dtype == k.dtype == v.dtype or not _serve(k, v):
        return None
    form: Any = on_mesh(by_kernels, _sharded, v, k)
    if form is by_kernels:
        return by_kernels if mesh_objection("") is None else None
    return None if "sequence_axis" in form.keywords else form


def _serve(k: Array, v: Array) -> bool:
    if not all(may_run_by_default("cuda", op) for op in PACKAGES):
        return False
    (b, t, h, v_dim), k_dim = v.shape, k.shape[3]
    problem = GeneralProblem(b=b, t=-(-t // CHUNK) * CHUNK, h=h, k=k_dim, v=v_dim, dtype=v.dtype)
    objection = backends.BACKENDS["mosaic_gpu"].objection(problem)
    return objection in (None, mesh_objection(backends.ENTRY_POINT))


def by_kernels(
    q: Array,
    k: Array,
    v: Array,
    u: Array,
    z: Array,
    log_decay: Array | None,
    segment_ids: Array | None,
    state: Array | None,
) -> tuple[Array, Array]:
    """y (b, t, h, v) in the dtype of v, and the last state, of `delta_rule` with t >= 1; differentiable.

    log_decay (b or 1, t, h or 1, k or 1) float32, None: no decay; state (b, h, k, v) float32, None: zeros.
    """
    decay = with_resets(log_decay, segment_ids)
    decay = jnp.broadcast_to(jnp.zeros((), jnp.float32) if decay is None else decay, k.shape)
    u, z = u.astype(v.dtype), z.astype(v.dtype)
    if segment_ids is not None:
        starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
        u = jnp.where(starts[..., None, None], jnp.zeros_like(u), u)
    return general_delta_rule(q, k, v, u, z, decay, initial_state=state, return_state=True)


def _sharded(
    q: Array, k: Array, v: Array, u: Array, z: Array, log_decay: Array | None, segment_ids: Array | None,
    state: Array | None, *, batch_axes: tuple[str, ...], head_axes: tuple[str, ...],
) -> tuple[Array, Array]:  # fmt: skip
    """`by_kernels` with each device on its share of batch and heads."""
    decays = P()
    if log_decay is not None:
        decays = P(batch_axes if len(log_decay) > 1 else None, None, head_axes if log_decay.shape[2] > 1 else None)
    tokens, states = P(batch_axes, None, head_axes), P(batch_axes, head_axes)
    specs = (*[tokens] * 5, decays, P(batch_axes), states)
    form = jax.shard_map(by_kernels, in_specs=specs, out_specs=(tokens, states), check_vma=False)
    return form(q, k, v, u, z, log_decay, segment_ids, state)
