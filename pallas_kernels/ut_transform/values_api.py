"""Values that a delta rule writes: `ut_transform` and `delta_chunks`, with one kernel for all gradients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from pallas_kernels import op as base
from pallas_kernels.delta_chunks import api as delta, triton as triton_recurrence, xla as recurrence
from pallas_kernels.dispatch import may_run_by_default
from pallas_kernels.layout import make_layout, on_shares
from pallas_kernels.op import Op, Options
from pallas_kernels.ut_transform import api, triton, xla
from pallas_kernels.ut_transform.api import CHUNK, all_kept, check
from pallas_kernels.ut_transform.problem import ValuesProblem


class Saved(NamedTuple):
    """Residuals; write and keep are None without decays."""

    mix: jax.Array
    read: jax.Array
    write: jax.Array | None
    keep: jax.Array | None
    states: jax.Array
    """Before every chunk, (b, n, h, k, v) in the dtype of v."""


def _forward(transform, recur, k, v, beta, log_decay, state, *, options: Options):
    mix, read, write, keep = transform(k, beta, log_decay, chunk=CHUNK)
    all_write = k if write is None else write
    all_keep = all_kept(k, CHUNK) if keep is None else keep
    y, _, states = recur(v, read, all_write, mix, all_keep, state, save_states=options.save_states)
    return y, k, Saved(mix, read, write, keep, states) if options.save_states else None


def _xla_forward(*operands, options):
    return _forward(xla.forward, recurrence.recur, *operands, options=options)


def _xla_backward(k, v, beta, log_decay, state, y, saved, dy, dkeys, *, options):
    write = k if saved.write is None else saved.write
    keep = all_kept(k, CHUNK) if saved.keep is None else saved.keep
    operands = dy, write, saved.read, saved.mix, keep
    dv, dstate, after = recurrence.recur(*operands, None, save_states=True, reverse=True)
    found = recurrence.gradients(v, saved.read, write, y, dy, dv, saved.states, after)
    dread, dwrite, dmix, dkeep = found
    dkeep = None if log_decay is None else dkeep
    cotangents = dmix, dread, dwrite, dkeep, dkeys
    dk, dbeta, dlog_decay = xla.backward(k, beta, log_decay, *cotangents, chunk=CHUNK)
    return dk, dv, dbeta, dlog_decay, None if state is None else dstate


def _hopper_forward(*operands, options, interpret=None):
    from pallas_kernels.delta_chunks import mosaic_gpu

    def transform(*arrays, chunk):
        return api.hopper_transform(*arrays, chunk=chunk, interpret=interpret)

    def recur(*arrays, save_states):
        return mosaic_gpu.recur(*arrays, save_states=save_states, interpret=interpret)

    return _forward(transform, recur, *operands, options=options)


def _hopper_backward(k, v, beta, log_decay, state, y, saved, dy, dkeys, *, options, interpret=None):
    from pallas_kernels.ut_transform import mosaic_gpu_values

    keep = all_kept(k, CHUNK) if saved.keep is None else saved.keep
    kept = saved.mix, saved.read, saved.write, saved.states
    return mosaic_gpu_values.backward(k, v, beta, log_decay, keep, state, y, dy, dkeys, kept, interpret=interpret)


def _hopper():
    return _hopper_forward, _hopper_backward


def _hopper_objection(p: ValuesProblem) -> str | None:
    parts = (api.BACKENDS, p), (delta.BACKENDS, p.recurrence)
    return next((found for table, part in parts if (found := table["mosaic_gpu"].objection(part))), None)


def _triton_forward(*operands, options):
    return _forward(triton.forward, triton_recurrence.recur, *operands, options=options)


def _triton_backward(k, v, beta, log_decay, state, y, saved, dy, dkeys, *, options):
    write = k if saved.write is None else saved.write
    keep = all_kept(k, CHUNK) if saved.keep is None else saved.keep
    operands = dy, write, saved.read, saved.mix, keep, None
    dv, dstate, after = triton_recurrence.recur(*operands, save_states=True, reverse=True)
    found = triton_recurrence.gradients(v, saved.read, write, y, dy, dv, saved.states, after)
    dread, dwrite, dmix, dkeep = found
    cotangents = dmix, dread, dwrite, None if log_decay is None else dkeep, dkeys
    dk, dbeta, dlog_decay = triton.backward(k, beta, log_decay, *cotangents, chunk=CHUNK)
    return dk, dv, dbeta, dlog_decay, None if state is None else dstate


def _triton_objection(p: ValuesProblem) -> str | None:
    return triton.objection(p) or triton_recurrence.objection(p.recurrence)


def _recurrence_is_verified(p: ValuesProblem) -> bool:
    """Whether any kernels of `delta_chunks` are verified; lowering asks for those in the language of the choice."""
    return may_run_by_default("cuda", "delta_chunks")


OP = Op(
    "delta_values",
    {
        "xla": base.xla(_xla_forward, _xla_backward),
        "mosaic_gpu": base.hopper(_hopper, _hopper_objection, automatic=_recurrence_is_verified),
        "triton": base.triton(lambda: (_triton_forward, _triton_backward), _triton_objection),
    },
    operands=("k", "v", "beta", "log_decay", "state"),
    kept=base.first_output,
)
"""Contract (`op.py`):

    forward(k, v, beta, log_decay, state, *, options) -> y, keys, `Saved`
    backward(k, v, beta, log_decay, state, y, saved, dy, dkeys, *, options) -> dk, dv, dbeta, dlog_decay, dstate

Arrays as in `api.py`, v and y (b, t, h, v) in the dtype of the keys, state (b, h, k, v) float32, None: zeros.
"""
BACKENDS = OP.backends


def delta_values(
    k: jax.Array,
    v: jax.Array,
    beta: jax.Array,
    log_decay: jax.Array | None = None,
    *,
    initial_state: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """v' of the equation in `api.py`, with S the state before each chunk.

    The outputs of a delta rule are decayed linear attention over v' and the returned keys. The backward pass keeps mix,
    read, write and the states before every chunk of 64 tokens.

    Args:
      k, beta, log_decay: as for `ut_transform`, t a multiple of 64.
      v: (b, t, h, v), dtype of the keys.
      initial_state: (b, h, k, v) float32; None: zeros.
      implementation: "xla", "mosaic_gpu" or "triton", or None, as for `ut_transform`; kernels of `delta_chunks` must
        be verified too.

    Returns:
      v' (b, t, h, v) in the dtype of v, and the keys.
    """
    _check_values(k, v, beta, log_decay)
    OP.check(implementation, tuple(BACKENDS))
    if v.size == 0:
        return v, k
    beta = beta.astype(jnp.float32)
    log_decay = None if log_decay is None else log_decay.astype(jnp.float32)
    decay = api.problem_of(k, beta, log_decay, CHUNK).decay
    (b, t, h, v_dim), k_dim = v.shape, k.shape[3]
    problem = ValuesProblem(b=b, t=t, h=h, k=k_dim, v=v_dim, decay=decay, chunk=CHUNK, dtype=k.dtype.name)
    names = OP.choose(problem, implementation)
    options = Options(return_state=False, save_states=False)
    y, keys = OP.run(names, problem, k, v, beta, log_decay, initial_state, options=options)
    return y, keys


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
    """`delta_values` on a mesh; `pallas_kernels.layout` describes mesh and axes."""
    _check_values(k, v, beta, log_decay)
    layout = make_layout("sharded_delta_values", mesh, k, v, batch_axes=batch_axes, head_axes=head_axes)

    def local(k, v, beta, log_decay, state):
        return delta_values(k, v, beta, log_decay, initial_state=state, implementation=implementation)

    spec = layout.queries
    arrays = k, v, beta, log_decay, initial_state
    return on_shares(local, layout.mesh, arrays, (*[spec] * 4, layout.states), (spec, spec))


def _check_values(k, v, beta, log_decay) -> None:
    check(k, beta, log_decay, CHUNK)
    if v.ndim != 4 or v.shape[:3] != k.shape[:3] or v.dtype != k.dtype:
        given = f"{v.shape} {v.dtype.name}"
        raise ValueError(f"delta_values: v of {given} must be (b, t, h, v) of k of {k.shape} {k.dtype.name}; cast it")
