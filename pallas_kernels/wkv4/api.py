"""wkv4, the weighted key-value mean of RWKV-4 (Peng et al. 2023, equations 14 to 16): public functions.

For every channel, with a decay w > 0 and a bonus u of the token itself:

    wkv_t = (sum_{i<t} e^{-(t-1-i) w + k_i} v_i + e^{u + k_t} v_t) / (sum_{i<t} e^{-(t-1-i) w + k_i} + e^{u + k_t})
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.dispatch import hopper_objection
from pallas_kernels.layout import checked_mesh, on_shares
from pallas_kernels.op import (
    Op,
    Options,
    check_dtypes,
    check_segment_ids,
    hopper,
    tpu,
    triton as triton_backend,
    xla_recurrence,
)
from pallas_kernels.wkv4 import mosaic_tpu, mosaic_tpu_layout, mosaic_tpu_vjp, reference, triton, xla
from pallas_kernels.wkv4.problem import Problem
from pallas_kernels.wkv4.state import Wkv4State, empty_state


def problem_of(k: jax.Array) -> Problem:
    """Problem of a call with these keys."""
    b, t, d = k.shape
    return Problem(b=b, t=t, d=d, dtype=k.dtype.name)


def _hopper():
    from pallas_kernels.wkv4 import mosaic_gpu, mosaic_gpu_vjp

    return mosaic_gpu.forward, mosaic_gpu_vjp.backward


def _hopper_objection(p: Problem) -> str | None:
    if p.d % 256:
        return f"channels {p.d} are not a multiple of 256"
    return hopper_objection((p.dtype_name,), served=("bfloat16", "float32"))


def _hopper_saved(k: jax.Array, *_: Any, **__: Any) -> jax.ShapeDtypeStruct:
    """Two numbers per channel before every 16 tokens."""
    b, t, d = k.shape
    return jax.ShapeDtypeStruct((2, b, -(-t // 16), d), jnp.float32)


def _tpu_saved(k: jax.Array, *_: Any, **__: Any) -> jax.ShapeDtypeStruct:
    """num, den, top before every block of tokens."""
    return jax.ShapeDtypeStruct(mosaic_tpu_layout.border_shape(problem_of(k)), jnp.float32)


def _scale(outputs: list, *, options: Options) -> tuple:
    last = outputs[1]
    return (None if last is None else last.max,)


OP = Op(
    "wkv4",
    {
        "xla": xla_recurrence(xla.forward, xla.backward, operands=6),
        "mosaic_gpu": hopper(_hopper, _hopper_objection, saved_like=_hopper_saved),
        "mosaic_tpu": tpu(
            mosaic_tpu.forward, mosaic_tpu_vjp.backward, mosaic_tpu_layout.objection, saved_like=_tpu_saved
        ),
        "triton": triton_backend(
            lambda: (triton.forward, triton.backward), triton.objection, saved_like=triton.saved_like
        ),
    },
    operands=("k", "v", "w", "u", "keep", "state"),
    fixed=("keep",),
    kept=_scale,
    direct=xla.forward,
)
"""Contract (`op.py`):

    forward(k, v, w, u, keep, state, options) -> y, last state or None, saved
    backward(k, v, w, u, keep, state, last_max, saved, dy, dstate, options) -> dk, dv, dw, du, dstate

t >= 1; k, v, y, dy (b, t, d) of the same dtype; w, u (d,) float32, w positive; keep (b, t) float32, 0 at the first
token of every document but the first and 1 elsewhere, or None; state and dstate `Wkv4State`, None: no tokens.
`last_max` is the field `max` of the last state, or None. `max` has no gradient.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


def wkv4(
    k: jax.Array,
    v: jax.Array,
    w: jax.Array,
    u: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    initial_state: Wkv4State | None = None,
    return_state: bool = False,
    implementation: str | None = None,
) -> Any:
    """The equation of the module docstring over t >= 0 tokens.

    Differentiable in k, v, w, u and the sums of the initial state, through the output and the sums of the final state;
    `max` is a scale without a gradient.

    Args:
      k: (b, t, d), logarithms of the weights, any finite numbers.
      v: (b, t, d), values, dtype of k.
      w: (d,), decay per token, positive: the past loses the factor e^-w; computed in float32.
      u: (d,), bonus of the token itself; computed in float32.
      segment_ids: (b, t) int32 for packed documents, each a run of equal ids in a row. A document starts from an empty
        state; `initial_state` belongs to the first document, the returned state to the last.
      initial_state: sums over earlier tokens; None: no earlier tokens.
      return_state: whether to return the state after the last token too.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`).

    Returns:
      wkv (b, t, d) in the dtype of v, or (wkv, state).
    """
    _check(k, v, w, u, segment_ids, initial_state)
    OP.check(implementation)
    if implementation == "reference":
        y, state = reference.recurrence(k, v, w, u, segment_ids=segment_ids, initial_state=initial_state)
        return (y, state) if return_state else y
    keep = xla.keep_of(segment_ids)
    return _scan(k, v, w, u, keep, initial_state, return_state=return_state, implementation=implementation)


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
) -> Any:
    """`wkv4` on a mesh; `pallas_kernels.layout` describes mesh and axes.

    Only gradients of w and u are communicated.
    """
    _check(k, v, w, u, segment_ids, initial_state)
    OP.check(implementation, tuple(BACKENDS), "sharded_wkv4")
    shares = {"batch": (k.shape[0], batch_axes), "channels": (k.shape[2], channel_axes)}
    mesh = checked_mesh("sharded_wkv4", mesh, shares)
    tokens, channels, states = P(batch_axes, None, channel_axes), P(channel_axes), P(batch_axes, channel_axes)
    run = functools.partial(_scan, return_state=return_state, implementation=implementation)
    arrays = k, v, w, u, xla.keep_of(segment_ids), initial_state
    specs = tokens, tokens, channels, channels, P(batch_axes), states
    return on_shares(run, mesh, arrays, specs, (tokens, states) if return_state else tokens)


def _scan(k, v, w, u, keep, state, *, return_state, implementation):
    """`wkv4` by an implementation other than "reference"."""
    w, u = (x.astype(jnp.float32) for x in (w, u))
    return OP.recur(
        problem_of(k), implementation, k, v, w, u, keep, state, options=Options(return_state),
        empty=lambda: (v, empty_state(len(k), k.shape[2])),
    )  # fmt: skip


def _check(k, v, w, u, segment_ids, state) -> None:
    op = "wkv4"
    if k.ndim != 3 or v.shape != k.shape:
        raise ValueError(f"{op}: k and v of shapes {k.shape}, {v.shape} must both be (b, t, d)")
    check_dtypes(op, k=k, v=v)
    b, t, d = k.shape
    if not w.shape == u.shape == (d,):
        raise ValueError(f"{op}: w and u of shapes {w.shape}, {u.shape} must both be (d,)={(d,)}")
    check_segment_ids(op, segment_ids, (b, t))
    for name, x in zip(Wkv4State._fields, state or (), strict=False):
        if x.shape != (b, d):
            raise ValueError(f"{op}: initial_state.{name} of shape {x.shape} must be (b, d)={(b, d)}")
