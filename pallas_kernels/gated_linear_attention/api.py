"""Gated linear attention: public functions.

    S_t = Diag(exp(g_t)) S_{t-1} + k_t v_t^T        y_t = scale S_t^T q_t

with log decays g_t <= 0: one number per head and token (RetNet, Sun et al. 2023, eq. 6, where it is a constant of the
head; Mamba-2, Dao and Gu 2024, where C, B and delta x are q, k and v) or one per channel of the keys (GLA, Yang et al.
2024, eq. 4). The decay acts on the state before the token is written.

RWKV-5 and 6 read before they write, and add a bonus for the token itself: shift k, v and g by one token, and add
(q . u k) v.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from pallas_kernels import op as base
from pallas_kernels.dispatch import hopper_objection
from pallas_kernels.gated_linear_attention import (
    mosaic_tpu,
    mosaic_tpu_channel,
    mosaic_tpu_layout,
    reference,
    triton,
    xla,
)
from pallas_kernels.gated_linear_attention.problem import Problem
from pallas_kernels.layout import make_layout, on_shares, part_of_sequence
from pallas_kernels.op import (
    Op,
    Options,
    check_dtypes,
    check_segment_ids,
    check_state,
    hopper,
    saves_nothing,
    tpu,
    xla_recurrence,
)


def problem_of(q: jax.Array, v: jax.Array, log_decay: jax.Array) -> Problem:
    """Problem of a call with these arrays."""
    (b, t, h, v_dim), (g, k_dim) = v.shape, q.shape[2:]
    return Problem(b=b, t=t, h=h, g=g, k=k_dim, v=v_dim, dtype=q.dtype.name, channel=log_decay.ndim == 4)


def _hopper():
    from pallas_kernels.gated_linear_attention import mosaic_gpu, mosaic_gpu_channel

    return _by_decay("forward", mosaic_gpu, mosaic_gpu_channel), _by_decay("backward", mosaic_gpu, mosaic_gpu_channel)


def _by_decay(method: str, by_head: Any, by_channel: Any):
    """Selects the kernel for decays per head or per channel."""

    def run(q, k, v, log_decay, *arrays, **options):
        kernels = by_channel if log_decay.ndim == 4 else by_head
        return getattr(kernels, method)(q, k, v, log_decay, *arrays, **options)

    return run


def _hopper_objection(p: Problem) -> str | None:
    if p.channel and p.k in (64, 128) and p.v % 64:
        return f"value width {p.v} is not a multiple of 64"
    if p.k not in (64, 128) or (p.v not in (64, 128) and not p.channel):
        return f"key and value widths {p.k}, {p.v} are not 64 or 128"
    return hopper_objection((p.dtype_name,) * 3)


def _hopper_saved(q, k, v, log_decay, *_: Any, **__: Any) -> jax.ShapeDtypeStruct:
    """States before every chunk of 128 tokens (64 with decays per channel), in tiles of 64 keys and values."""
    p = problem_of(q, v, log_decay)
    chunks = -(-p.t // (64 if p.channel else 128))
    return jax.ShapeDtypeStruct((p.b * p.h * chunks * p.k * p.v // 64, 64), v.dtype)


def _tpu_saved(q, k, v, log_decay, *_: Any, **__: Any) -> jax.ShapeDtypeStruct:
    """States before every block or chunk."""
    return jax.ShapeDtypeStruct(mosaic_tpu_layout.border_shape(problem_of(q, v, log_decay)), v.dtype)


OP = Op(
    "gated_linear_attention",
    {
        "xla": xla_recurrence(xla.forward, xla.backward, operands=5),
        "mosaic_gpu": hopper(_hopper, _hopper_objection, saved_like=_hopper_saved),
        "mosaic_tpu": tpu(
            _by_decay("forward", mosaic_tpu, mosaic_tpu_channel),
            _by_decay("backward", mosaic_tpu, mosaic_tpu_channel),
            mosaic_tpu_layout.objection,
            saved_like=_tpu_saved,
        ),
        "triton": base.triton(
            lambda: (triton.forward, triton.backward), triton.objection, triton.automatic, saved_like=saves_nothing
        ),
    },
    operands=("q", "k", "v", "log_decay", "state"),
    direct=xla.forward,
)
"""Contract (`op.py`):

    forward(q, k, v, log_decay, state, options) -> y, final state or None, saved
    backward(q, k, v, log_decay, state, saved, dy, dstate, options) -> dq, dk, dv, dlog_decay, dstate

t >= 1; q, k (b, t, g, k), v and y (b, t, h, v), g dividing h; log_decay (b, t, h) or (b, t, h, k) float32, at most 0;
state and dstate (b, h, k, v) float32, None: zeros. A log decay of `xla.RESET` starts a document.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


def gated_linear_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    *,
    scale: float = 1.0,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    implementation: str | None = None,
) -> Any:
    """The equation of the module docstring over t >= 0 tokens.

    Differentiable in q, k, v, log_decay and the initial state, through the output and the final state.

    Args:
      q: (b, t, g, k); head i of q and k serves the heads i h/g .. (i+1) h/g - 1 of v, as the groups of Mamba-2.
      k: (b, t, g, k), dtype of q.
      v: (b, t, h, v), dtype of q; h is a multiple of g.
      log_decay: (b, t, h) or (b, t, h, k), at most 0 and finite, computed in float32.
      scale: factor of y, a Python number; multiplied into q, in its dtype.
      segment_ids: (b, t) int32 for packed documents, each a run of equal ids in a row. A document starts from zeros;
        `initial_state` belongs to the first document, the returned state to the last.
      initial_state: (b, h, k, v) float32, S before the first token; None: zeros.
      return_state: whether to return S after the last token too.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`).

    Returns:
      y (b, t, h, v) in the dtype of v, or (y, state).
    """
    _check(q, k, v, log_decay, segment_ids, initial_state)
    OP.check(implementation)
    if scale != 1:
        q = q * jnp.asarray(scale, q.dtype)
    if implementation == "reference":
        y, state = reference.recurrence(q, k, v, log_decay, initial_state=initial_state, segment_ids=segment_ids)
        return (y, state) if return_state else y
    decays = _with_resets(log_decay, segment_ids)
    (b, _, h, v_dim), k_dim = v.shape, q.shape[3]
    return OP.recur(
        problem_of(q, v, decays), implementation, q, k, v, decays, initial_state, options=Options(return_state),
        empty=lambda: (v, jnp.zeros((b, h, k_dim, v_dim), jnp.float32)),
    )  # fmt: skip


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
) -> Any:
    """`gated_linear_attention` on a mesh; `pallas_kernels.layout` describes mesh and axes.

    A single head of q and k is copied to all devices.
    """
    _check(q, k, v, log_decay, segment_ids, initial_state)
    axes = {"batch_axes": batch_axes, "head_axes": head_axes, "sequence_axis": sequence_axis}
    layout = make_layout("sharded_gated_linear_attention", mesh, v, k, **axes)

    def local(q, k, v, log_decay, initial_state):
        def run(start):
            return gated_linear_attention(
                q, k, v, log_decay, initial_state=start, return_state=return_state, **options
            )  # fmt: skip

        if sequence_axis is None:
            return run(initial_state)
        own = xla.forward(q, k, v, log_decay, None)[1]
        kept = jnp.exp(log_decay.astype(jnp.float32).sum(1)).reshape(*own.shape[:2], -1, 1)
        parts = layout.mesh.shape[sequence_axis]
        return part_of_sequence(
            run, own, kept, initial_state, axis=sequence_axis, parts=parts, return_state=return_state
        )  # fmt: skip

    tokens = layout.queries
    specs = layout.keys, layout.keys, tokens, tokens, layout.states
    arrays = q, k, v, _with_resets(log_decay, segment_ids), initial_state
    return on_shares(local, layout.mesh, arrays, specs, (tokens, layout.states) if return_state else tokens)


def _with_resets(log_decay: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
    """float32 log decays that reset the state where a document begins."""
    decays = log_decay.astype(jnp.float32)
    per_channel = decays if decays.ndim == 4 else decays[..., None]
    return xla.with_resets(per_channel, segment_ids).reshape(decays.shape)


def _check(q, k, v, log_decay, segment_ids, state) -> None:
    op = "gated_linear_attention"
    if not q.ndim == k.ndim == v.ndim == 4 or q.shape != k.shape or v.shape[:2] != q.shape[:2]:
        shapes = f"{q.shape}, {k.shape}, {v.shape}"
        raise ValueError(f"{op}: q, k, v of shapes {shapes} must be (b, t, g, k), (b, t, g, k), (b, t, h, v)")
    (b, t, h, v_dim), (g, k_dim) = v.shape, k.shape[2:]
    if g == 0 or h % g:
        raise ValueError(f"{op}: {h} heads of v must be a multiple of the {g} heads of q and k")
    check_dtypes(op, q=q, k=k, v=v)
    by_head, by_channel = (b, t, h), (b, t, h, k_dim)
    if log_decay.shape not in (by_head, by_channel):
        rule = f"(b, t, h)={by_head} or (b, t, h, k)={by_channel}"
        raise ValueError(f"{op}: log_decay of shape {log_decay.shape} must be {rule}; broadcast it")
    check_segment_ids(op, segment_ids, (b, t))
    check_state(op, state, "(b, h, k, v)", (b, h, k_dim, v_dim))
