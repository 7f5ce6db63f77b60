"""Selective scan, the recurrence of Mamba (Gu and Dao 2023, Algorithm 2): public functions.

    h_t[i, n] = exp(delta_t[i] a[i, n]) h_{t-1}[i, n] + delta_t[i] x_t[i] b_t[n]        y_t[i] = sum_n c_t[n] h_t[i, n]

The softplus of delta, the skip D x and the gate are not included. b is discretised by Euler's rule, as in the authors'
code.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.dispatch import hopper_objection
from pallas_kernels.layout import checked_mesh, on_shares, part_of_sequence
from pallas_kernels.op import (
    Op,
    Options,
    check_dtypes,
    check_segment_ids,
    check_state,
    hopper,
    tpu,
    triton as triton_backend,
    xla_recurrence,
)
from pallas_kernels.selective_scan import mosaic_tpu, mosaic_tpu_layout, mosaic_tpu_vjp, reference, triton, xla
from pallas_kernels.selective_scan.problem import Problem


def problem_of(x: jax.Array, delta: jax.Array, a: jax.Array) -> Problem:
    """Problem of a call with these arrays."""
    b, t, d = x.shape
    return Problem(b=b, t=t, d=d, n=a.shape[1], dtype=x.dtype.name, delta_dtype=delta.dtype.name)


def _hopper():
    from pallas_kernels.selective_scan import mosaic_gpu, mosaic_gpu_vjp

    return mosaic_gpu.forward, mosaic_gpu_vjp.backward


def _hopper_objection(p: Problem) -> str | None:
    if p.d % 32:
        return f"channels {p.d} are not a multiple of 32"
    if p.n > 16:
        return f"numbers of state {p.n} are more than 16"
    if p.dtype_name != "bfloat16":
        return f"dtype of x is {p.dtype_name}, not bfloat16"
    return hopper_objection((p.dtype_name,))


def _hopper_saved(x: jax.Array, *_: Any, **__: Any) -> jax.ShapeDtypeStruct:
    """States (d, 16) before every 16 tokens; lengths are rounded up to multiples of 32."""
    b, t, d = x.shape
    return jax.ShapeDtypeStruct((b, -(-t // 32) * 2, d, 16), jnp.bfloat16)


def _tpu_saved(x: jax.Array, delta: jax.Array, a: jax.Array, *_: Any, **__: Any) -> jax.ShapeDtypeStruct:
    """States (n, d) before every block of tokens."""
    return jax.ShapeDtypeStruct(mosaic_tpu_layout.border_shape(problem_of(x, delta, a)), jnp.float32)


OP = Op(
    "selective_scan",
    {
        "xla": xla_recurrence(xla.forward, xla.backward, operands=7),
        "mosaic_gpu": hopper(_hopper, _hopper_objection, saved_like=_hopper_saved),
        "mosaic_tpu": tpu(
            mosaic_tpu.forward, mosaic_tpu_vjp.backward, mosaic_tpu_layout.objection, saved_like=_tpu_saved
        ),
        "triton": triton_backend(
            lambda: (triton.forward, triton.backward), triton.objection, saved_like=triton.saved_like
        ),
    },
    operands=("x", "delta", "a", "b", "c", "keep", "state"),
    fixed=("keep",),
    direct=xla.forward,
)
"""Contract (`op.py`):

    forward(x, delta, a, b, c, keep, state, options) -> y, final state or None, saved
    backward(x, delta, a, b, c, keep, state, saved, dy, dstate, options) -> dx, ddelta, da, db, dc, dstate

t >= 1; x, y, dy (b, t, d); delta (b, t, d), float32 or the dtype of x, at least 0; a (d, n) float32, at most 0; b, c
(b, t, n) in the dtype of x; keep (b, t) float32, 0 at the first token of every document but the first and 1 elsewhere,
or None; state and dstate (b, d, n) float32, None: zeros.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


def selective_scan(
    x: jax.Array,
    delta: jax.Array,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    implementation: str | None = None,
) -> Any:
    """The equation of the module docstring over t >= 0 tokens.

    Differentiable in x, delta, a, b, c and the initial state, through the output and the final state.

    Args:
      x: (b, t, d), d channels.
      delta: (b, t, d), the step, at least 0; float32 or the dtype of x. A token with delta 0 changes no state.
      a: (d, n), at most 0, n numbers of state per channel; computed in float32.
      b: (b, t, n), dtype of x: writes to the state.
      c: (b, t, n), dtype of x: reads from it.
      segment_ids: (b, t) int32 for packed documents, each a run of equal ids in a row. A document starts from zeros;
        `initial_state` belongs to the first document, the returned state to the last.
      initial_state: (b, d, n) float32, h before the first token; None: zeros.
      return_state: whether to return h after the last token too.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`).

    Returns:
      y (b, t, d) in the dtype of x, or (y, state).
    """
    _check(x, delta, a, b, c, segment_ids, initial_state)
    OP.check(implementation)
    if implementation == "reference":
        y, state = reference.recurrence(x, delta, a, b, c, segment_ids=segment_ids, initial_state=initial_state)
        return (y, state) if return_state else y
    keep = xla.keep_of(segment_ids)
    return _scan(x, delta, a, b, c, keep, initial_state, return_state=return_state, implementation=implementation)


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
) -> Any:
    """`selective_scan` on a mesh; `pallas_kernels.layout` describes mesh and axes.

    Devices that share out channels hold all of b and c; gradients of b, c and a are summed over devices.
    """
    _check(x, delta, a, b, c, segment_ids, initial_state)
    op, times = "sharded_selective_scan", () if sequence_axis is None else (sequence_axis,)
    OP.check(implementation, tuple(BACKENDS), op)
    rows, t, d = x.shape
    shares = {"batch": (rows, batch_axes), "time": (t, times), "channels": (d, channel_axes)}
    mesh = checked_mesh(op, mesh, shares)
    scan = functools.partial(_scan, return_state=return_state, implementation=implementation)

    def local(x, delta, a, b, c, keep, state):
        if sequence_axis is None:
            return scan(x, delta, a, b, c, keep, state)
        a = a.astype(jnp.float32)
        kept = jnp.exp(delta.astype(jnp.float32).sum(1)[..., None] * a[None])
        if keep is not None:
            kept = kept * jax.lax.stop_gradient(keep.prod(1))[:, None, None]
        own = xla.forward(x, delta, a, b, c, keep, None)[1]
        run = functools.partial(scan, x, delta, a, b, c, keep)
        parts = mesh.shape[sequence_axis]
        return part_of_sequence(run, own, kept, state, axis=sequence_axis, parts=parts, return_state=return_state)

    # `keep` of the whole sequence: a document may begin at the first token of a part.
    arrays = x, delta, a, b, c, xla.keep_of(segment_ids), initial_state
    tokens, maps, states = P(batch_axes, times, channel_axes), P(batch_axes, times), P(batch_axes, channel_axes)
    specs = tokens, tokens, P(channel_axes), maps, maps, maps, states
    return on_shares(local, mesh, arrays, specs, (tokens, states) if return_state else tokens)


def _scan(x, delta, a, b, c, keep, state, *, return_state, implementation):
    """`selective_scan` by an implementation other than "reference"."""
    a = a.astype(jnp.float32)
    return OP.recur(
        problem_of(x, delta, a), implementation, x, delta, a, b, c, keep, state, options=Options(return_state),
        empty=lambda: (x, jnp.zeros((len(x), *a.shape), jnp.float32)),
    )  # fmt: skip


def _check(x, delta, a, b, c, segment_ids, state) -> None:
    op = "selective_scan"
    if x.ndim != 3 or delta.shape != x.shape:
        raise ValueError(f"{op}: x and delta of shapes {x.shape}, {delta.shape} must both be (b, t, d)")
    rows, t, d = x.shape
    if a.ndim != 2 or len(a) != d:
        raise ValueError(f"{op}: a of shape {a.shape} must be (d, n), with d={d} of x")
    n = a.shape[1]
    if not b.shape == c.shape == (rows, t, n):
        raise ValueError(f"{op}: b and c of shapes {b.shape}, {c.shape} must both be (b, t, n)={(rows, t, n)}")
    check_dtypes(op, x=x, b=b, c=c)
    if delta.dtype not in (jnp.float32, x.dtype):
        raise ValueError(f"{op}: dtype of delta {delta.dtype.name} must be float32 or that of x, {x.dtype.name}")
    check_segment_ids(op, segment_ids, (rows, t))
    check_state(op, state, "(b, d, n)", (rows, d, n))
