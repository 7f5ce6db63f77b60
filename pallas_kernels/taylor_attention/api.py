"""Taylor attention: public functions.

With s_ij = scale * q_i.k_j and weights w_ij = decay^(i-j) (1 + s_ij + s_ij^2/2) for j <= i:

    y_i = sum_j w_ij v_j / (sum_j w_ij + eps)

(Based, Arora et al. 2024, sec. 3.1 and 4.1, eqs. 2-4; decay: App. C.) 1 + s + s^2/2 = ((1 + s)^2 + 1) / 2, so
weights are at least 1/2 and denominators never near 0. The weights factor into features (`features.py`), so the past is
a sum of constant size, `TaylorState`.

Deviations: eq. 4 prints no factor of the scores; the default here, k^-1/2, is that of the authors' code. The authors
keep all k^2 products; this code keeps the distinct ones. Their decay by default also divides a row of the mask by the
root of the row's sum, and does not apply to the denominator; here it is the plain power in numerator and denominator.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels import op as base
from pallas_kernels.layout import make_layout, on_shares, part_of_sequence
from pallas_kernels.op import Op, check_segment_ids
from pallas_kernels.taylor_attention import mosaic_gpu_layout, mosaic_tpu, mosaic_tpu_vjp, reference, triton, xla
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState, check_shapes, empty_state


class Options(NamedTuple):
    """Static options of a call."""

    scale: float
    eps: float
    normalize: bool
    return_state: bool
    save_states: bool
    """Whether `backward` follows."""
    chunk_size: int | None
    kernel_segments: int | None = None
    """Number of segments into which GPU kernels split a sequence; None: chosen, for mosaic_gpu by
    `mosaic_gpu_layout.Cost`."""


def _xla_forward(q, k, v, state, decay, segment_ids, options):
    y, last, den = xla.forward(
        q, k, v, scale=options.scale, eps=options.eps, normalize=options.normalize, initial_state=state,
        decay=decay, segment_ids=segment_ids, return_state=options.return_state, chunk_size=options.chunk_size,
    )  # fmt: skip
    return y, last, den if options.save_states else None


def _xla_backward(q, k, v, state, decay, segment_ids, y, den, dy, dstate, options):
    return xla.backward(
        q, k, v, y, den, dy, scale=options.scale, normalize=options.normalize, initial_state=state, decay=decay,
        segment_ids=segment_ids, dstate=dstate, chunk_size=options.chunk_size,
    )  # fmt: skip


def _hopper_forward(q, k, v, state, decay, segment_ids, options, *, interpret=None):
    from pallas_kernels.taylor_attention import mosaic_gpu

    segments = mosaic_gpu_layout.planned_segments(q, v, options)
    out = mosaic_gpu.forward(
        q, k, v, scale=options.scale, eps=options.eps, normalize=options.normalize, initial_state=state,
        decay=decay, return_state=options.return_state, return_den=options.save_states, segments=segments,
        interpret=interpret,
    )  # fmt: skip
    saved = (out.den, out.borders if segments > 1 else None) if options.save_states else None
    return out.y, None if out.state is None else TaylorState(*out.state), saved


def _hopper_backward(q, k, v, state, decay, segment_ids, y, saved, dy, dstate, options, *, interpret=None):
    from pallas_kernels.taylor_attention import mosaic_gpu_vjp

    den, borders = saved
    if borders is None:
        borders = mosaic_gpu_layout.one_border(state, q.shape[3], q.dtype)
    gradients = mosaic_gpu_vjp.backward(
        q, k, v, y, den, borders, dy, dstate, scale=options.scale, normalize=options.normalize, decay=decay,
        segments=mosaic_gpu_layout.planned_segments(q, v, options), interpret=interpret,
    )  # fmt: skip
    dinitial = None if state is None else TaylorState(gradients.s, gradients.z)
    return gradients.q, gradients.k, gradients.v, dinitial


def _hopper():
    return _hopper_forward, _hopper_backward


def _tpu_forward(q, k, v, state, decay, segment_ids, options, *, interpret=False):
    y, last, den = mosaic_tpu.forward(
        *_packed(q, k, v), h=q.shape[2], scale=options.scale, eps=options.eps, normalize=options.normalize,
        initial_state=state, decay=decay, return_state=options.return_state,
        return_den=options.save_states and options.normalize, interpret=interpret,
    )  # fmt: skip
    return y.reshape(*q.shape[:3], v.shape[3]), None if last is None else TaylorState(*last), den


def _tpu_backward(q, k, v, state, decay, segment_ids, y, den, dy, dstate, options, *, interpret=False):
    y, dy = (x.reshape(*x.shape[:2], -1) for x in (y, dy))
    gradients = mosaic_tpu_vjp.backward(
        *_packed(q, k, v), y, den, dy, h=q.shape[2], scale=options.scale, eps=options.eps,
        normalize=options.normalize, initial_state=state, decay=decay, dstate=dstate, interpret=interpret,
    )  # fmt: skip
    shared = (*q.shape[:2], k.shape[2], -1)
    dk, dv = (
        dx.reshape(*shared, x.shape[3]).astype(jnp.float32).sum(3).astype(x.dtype)
        for dx, x in ((gradients.k, k), (gradients.v, v))
    )
    start = gradients.initial_state
    dinitial = None if start is None else TaylorState(*start)
    return gradients.q.reshape(q.shape), dk, dv, dinitial


def _packed(q, k, v) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Merges heads into the last axis, after repeating keys and values for the query heads that share them."""
    group = q.shape[2] // k.shape[2]
    k, v = (x if group == 1 else jnp.repeat(x, group, axis=2) for x in (k, v))
    q, k, v = (x.reshape(*x.shape[:2], -1) for x in (q, k, v))
    return q, k, v


def _normalized(outputs: list, *, options: Options) -> tuple:
    return (outputs[0] if options.normalize else None,)


OP = Op(
    "taylor_attention",
    {
        "xla": base.xla(_xla_forward, _xla_backward),
        "mosaic_gpu": base.hopper(
            _hopper,
            mosaic_gpu_layout.objection,
            automatic=mosaic_gpu_layout.automatic,
            saved_like=mosaic_gpu_layout.saved_like,
        ),
        "mosaic_tpu": base.tpu(_tpu_forward, _tpu_backward, mosaic_tpu.objection),
        "triton": base.triton(lambda: (triton.forward, triton.backward), triton.objection),
    },
    operands=("q", "k", "v", "state", "decay", "segment_ids"),
    fixed=("decay", "segment_ids"),
    kept=_normalized,
)
"""Contract (`op.py`):

    forward(q, k, v, state, decay, segment_ids, options) -> y, final state or None, saved
    backward(q, k, v, state, decay, segment_ids, y, saved, dy, dstate, options) -> dq, dk, dv, dstate

t >= 1; q (b, t, h, k), k (b, t, g, k), v and y (b, t, h or g, v); state None: zeros; decay None: 1. segment_ids
(b, t) int32, or None: a row is one document; kernels object to them. saved is den (b, h, t) float32, None if not
normalize; on Hopper also the states at the starts of segments.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


def taylor_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    decay: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    initial_state: TaylorState | None = None,
    return_state: bool = False,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Any:
    """Causal Taylor attention over t >= 0 tokens; the equation is in the module docstring.

    Differentiable in q, k, v and the initial state, through the output and the final state.

    Args:
      q: (b, t, h, k); h is a multiple of g, and key/value head i serves the query heads i h/g .. (i+1) h/g - 1.
      k: (b, t, g, k).
      v: (b, t, g, v).
      scale: factor of the scores, a Python number; None: k^-1/2.
      eps: added to the sum of weights. The authors' code has 1e-12, flash-linear-attention 1e-6.
      normalize: divide by the sum of weights; False: y_i = sum_j w_ij v_j.
      decay: (h,) in (0, 1], factor of a weight per token; None: 1. It has no gradient.
      segment_ids: (b, t) int32 for packed documents: tokens attend only to their own document, a run of equal ids in a
        row (an id that returns after others starts a new document). Not with a state.
      initial_state: sums over earlier tokens; None: no earlier tokens.
      return_state: whether to return the sums after the last token too.
      chunk_size: chunk length of "xla", any positive number; None: chosen by length. Kernels refuse it.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`). float32 and k > 16
        take "mosaic_gpu" only by name; it multiplies float32 as pairs of bfloat16, with a relative error of 1e-5.

    Returns:
      y (b, t, h, v) in the dtype of v, or (y, state).
    """
    check_segments(q.shape, segment_ids, stateful=initial_state is not None or return_state)
    return attend(
        q, k, v, scale=scale, eps=eps, normalize=normalize, decay=decay, segment_ids=segment_ids,
        initial_state=initial_state, return_state=return_state, chunk_size=chunk_size, implementation=implementation,
    )  # fmt: skip


def attend(
    q, k, v, *, scale=None, eps=1e-12, normalize=True, decay=None, segment_ids=None, initial_state=None,
    return_state=False, chunk_size=None, implementation=None,
):  # fmt: skip
    """`taylor_attention` that with "xla" also takes segment_ids with a state, which belongs to the first document."""
    check_shapes(q.shape, k.shape, v.shape, decay, initial_state)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"taylor_attention: chunk_size={chunk_size} must be positive; None chooses")
    OP.check(implementation)
    (b, t, h, k_dim), (g, v_dim) = q.shape, v.shape[2:]
    scale = k_dim**-0.5 if scale is None else float(scale)
    decay = None if decay is None else jax.lax.stop_gradient(jnp.asarray(decay))
    if implementation == "reference":
        y, state = reference.quadratic(
            q, k, v, scale=scale, eps=eps, normalize=normalize, initial_state=initial_state, decay=decay,
            segment_ids=segment_ids,
        )  # fmt: skip
        return (y, state) if return_state else y
    problem = Problem(
        b=b, t=t, h=h, g=g, k=k_dim, v=v_dim, dtype=q.dtype.name, kv_dtypes=(k.dtype.name, v.dtype.name),
        chunk_size=chunk_size, segments=segment_ids is not None,
    )  # fmt: skip
    return OP.recur(
        problem, implementation, q, k, v, initial_state, decay, segment_ids,
        options=Options(scale, float(eps), normalize, return_state, save_states=False, chunk_size=chunk_size),
        empty=lambda: (jnp.zeros((b, 0, h, v_dim), v.dtype), empty_state(b, h, k_dim, v_dim)),
    )  # fmt: skip


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
    **options: Any,
) -> Any:
    """`taylor_attention` on a mesh; `pallas_kernels.layout` describes mesh and axes.

    A single key/value head is copied to all devices. segment_ids with `sequence_axis` need implementation "xla".
    """
    op = "sharded_taylor_attention"
    axes = {"batch_axes": batch_axes, "head_axes": head_axes, "sequence_axis": sequence_axis}
    layout = make_layout(op, mesh, q, k, **axes)
    check_segments(q.shape, segment_ids, stateful=initial_state is not None or return_state)
    begins = None
    if segment_ids is not None and sequence_axis is not None:
        if options.setdefault("implementation", "xla") != "xla":
            raise ValueError(
                f"{op}: segment_ids with sequence_axis={sequence_axis!r} need implementation='xla': kernels take no "
                "documents with the states that parts pass on"
            )
        begins = segment_ids != jnp.roll(segment_ids, 1, axis=1)
        segment_ids = jnp.cumsum(begins, axis=1, dtype=jnp.int32)  # an id may return as another document

    def local(q, k, v, decay, segment_ids, begins, initial_state):
        fixed = {"decay": decay, "segment_ids": segment_ids}

        def run(start):
            return attend(q, k, v, initial_state=start, return_state=return_state, **fixed, **options)

        if sequence_axis is None:
            return run(initial_state)
        own = xla.final_state(k, v, n_heads=q.shape[2], **fixed)
        return part_of_sequence(
            lambda start: run(_cleared(start, begins)), own, _kept(decay, begins, q.shape[1]), initial_state,
            axis=sequence_axis, parts=layout.mesh.shape[sequence_axis], return_state=return_state,
        )  # fmt: skip

    tokens, states, times = layout.queries, layout.states, P(layout.batch, layout.time)
    specs = tokens, layout.keys, layout.keys, P(head_axes), times, times, states
    arrays = q, k, v, decay, segment_ids, begins, initial_state
    return on_shares(local, layout.mesh, arrays, specs, (tokens, states) if return_state else tokens)


def _kept(decay, begins, tokens: int):
    """Factor of a state over a part of a sequence, (1 or b, h or 1): 0 if a document begins in it; None: 1."""
    kept = None
    if decay is not None:
        tiny = jnp.finfo(jnp.float32).tiny  # log 0 = -inf
        log_decay = jax.lax.stop_gradient(jnp.log(jnp.maximum(decay.astype(jnp.float32), tiny)))
        kept = jnp.exp(np.float32(tokens) * log_decay)[None]
    if begins is None:
        return kept
    same = 1.0 - begins.any(1, keepdims=True).astype(jnp.float32)
    return same if kept is None else same * kept


def _cleared(state: TaylorState, begins) -> TaylorState:
    """The state before a part, zero in rows in which a document begins at its first token."""
    if begins is None:
        return state
    return jax.tree.map(lambda x: jnp.where(begins[:, 0].reshape(-1, *[1] * (x.ndim - 1)), 0.0, x), state)


def check_segments(q: tuple, segment_ids, *, stateful: bool) -> None:
    """Raises ValueError unless `segment_ids` fit q of shape `q` and there is no state."""
    if segment_ids is None:
        return
    if stateful:
        raise ValueError(
            "taylor_attention: segment_ids with a state, which does not say whose its tokens are; prefill one document "
            "at a time"
        )
    check_segment_ids("taylor_attention", segment_ids, q[:2])
