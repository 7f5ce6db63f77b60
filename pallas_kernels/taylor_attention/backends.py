"""The implementations of Taylor attention, under one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(q, k, v, state, decay, segment_ids, options) -> y, final state or None, saved
    backward(q, k, v, state, decay, segment_ids, y, saved, dy, dstate, options)
        -> dq, dk, dv, cotangent of the state or None

t >= 1; q (b, t, h, k), k (b, t, g, k), v and y (b, t, h or g, v); state None means zeros, decay None means 1.
segment_ids (b, t) int32, or None: a row is one document; always None for kernels, which object to `segments`.
saved is den (b, h, t) float32, None if not normalize or not asked for; only its own implementation reads it. With
options.kernel_segments > 1 it is (den, borders): the states of `mosaic_gpu_split.border_shapes`, 11 MB at most, which
mosaic_gpu saves instead of making them again. That is so only where a traced program may run mosaic_gpu
(`dispatch.may_run_by_default`); another implementation that it is lowered for in spite of that, as for the CPU of a
host with a GPU, returns zeros there.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import Backend, mesh_objection, needs_wgmma
from pallas_kernels.taylor_attention import mosaic_gpu_layout, mosaic_gpu_split, mosaic_tpu, mosaic_tpu_vjp, triton, xla
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState

KERNELS = ("mosaic_gpu", "mosaic_tpu")
"""Implementations that are chosen where they serve."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Everything static about a call but its shapes."""

    scale: float
    eps: float
    normalize: bool
    return_state: bool
    return_den: bool
    """Whether `backward` will follow."""
    chunk_size: int | None
    kernel_segments: int = 1
    """Into how many segments mosaic_gpu splits the sequence; 1 if it may not run, or if a backward pass follows and the
    program is traced for another platform."""

    @property
    def saves_borders(self) -> bool:
        return self.return_den and self.kernel_segments > 1


def _xla_forward(q, k, v, state, decay, segment_ids, options):
    y, last, den = xla.forward(
        q, k, v, scale=options.scale, eps=options.eps, normalize=options.normalize, initial_state=state,
        decay=decay, segment_ids=segment_ids, return_state=options.return_state, chunk_size=options.chunk_size,
    )  # fmt: skip
    return y, last, den if options.return_den else None


def _xla_backward(q, k, v, state, decay, segment_ids, y, den, dy, dstate, options):
    return xla.backward(
        q, k, v, y, den, dy, scale=options.scale, normalize=options.normalize, initial_state=state, decay=decay,
        segment_ids=segment_ids, dstate=dstate, chunk_size=options.chunk_size,
    )  # fmt: skip


def _kernel(objection: Callable[[Problem], str | None]) -> Callable[[Problem], str | None]:
    """The objection of a hardware kernel, and what none of them serves."""

    def whole(p: Problem) -> str | None:
        if p.chunk_size is not None:
            return f"chunk_size={p.chunk_size} is an option of xla"
        if p.segments:
            return "segment_ids are served by xla alone"
        if p.b * p.h == 0:
            return f"batch {p.b} or heads {p.h} are 0"
        return objection(p) or mesh_objection("sharded_taylor_attention")

    return whole


def _mosaic_gpu_forward(q, k, v, state, decay, segment_ids, options, *, interpret=None):
    from pallas_kernels.taylor_attention import mosaic_gpu

    out = mosaic_gpu.forward(
        q, k, v, scale=options.scale, eps=options.eps, normalize=options.normalize, initial_state=state,
        decay=decay, return_state=options.return_state, return_den=options.return_den,
        segments=options.kernel_segments, interpret=interpret,
    )  # fmt: skip
    last = None if out.state is None else TaylorState(*out.state)
    return out.y, last, (out.den, out.borders) if options.saves_borders else out.den


def _mosaic_gpu_backward(q, k, v, state, decay, segment_ids, y, saved, dy, dstate, options, *, interpret=None):
    from pallas_kernels.taylor_attention import mosaic_gpu_vjp

    den, borders = saved if options.saves_borders else (saved, mosaic_gpu_layout.one_border(state, q.shape[3], q.dtype))
    gradients = mosaic_gpu_vjp.backward(
        q, k, v, y, den, borders, dy, dstate, scale=options.scale, normalize=options.normalize, decay=decay,
        segments=options.kernel_segments, interpret=interpret,
    )  # fmt: skip
    dinitial = None if state is None else TaylorState(gradients.s, gradients.z)
    return gradients.q, gradients.k, gradients.v, dinitial


def _mosaic_tpu_forward(q, k, v, state, decay, segment_ids, options, *, interpret=False):
    y, last, den = mosaic_tpu.forward(
        *_packed(q, k, v), h=q.shape[2], scale=options.scale, eps=options.eps, normalize=options.normalize,
        initial_state=state, decay=decay, return_state=options.return_state,
        return_den=options.return_den and options.normalize, interpret=interpret,
    )  # fmt: skip
    return y.reshape(*q.shape[:3], v.shape[3]), None if last is None else TaylorState(*last), den


def _mosaic_tpu_backward(q, k, v, state, decay, segment_ids, y, den, dy, dstate, options, *, interpret=False):
    pack = lambda x: x.reshape(*x.shape[:2], -1)  # noqa: E731
    q_packed, k_packed, v_packed = _packed(q, k, v)
    gradients = mosaic_tpu_vjp.backward(
        q_packed, k_packed, v_packed, pack(y), den, pack(dy), h=q.shape[2], scale=options.scale, eps=options.eps,
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
    """Heads side by side on the last axis, keys and values repeated for the query heads that share them."""
    group = q.shape[2] // k.shape[2]
    k, v = (x if group == 1 else jnp.repeat(x, group, axis=2) for x in (k, v))
    q, k, v = (x.reshape(*x.shape[:2], -1) for x in (q, k, v))
    return q, k, v


def _triton_forward(q, k, v, state, decay, segment_ids, options):
    y, last, den = triton.forward(q, k, v, state, decay, options)
    return y, last, den if options.return_den else None


def _without_borders(backend: Backend) -> Backend:
    """An implementation that saves no border states, under the contract."""

    def forward(q, k, v, state, decay, segment_ids, options, **kwargs):
        y, last, den = backend.forward(q, k, v, state, decay, segment_ids, options, **kwargs)
        if not options.saves_borders:
            return y, last, den
        shapes = mosaic_gpu_split.border_shapes(
            q.shape[0], q.shape[2], q.shape[3], v.shape[3], q.dtype, options.kernel_segments - (state is None)
        )
        return y, last, (den, tuple(jnp.zeros(shape, jnp.float32) for shape in shapes))

    def backward(q, k, v, state, decay, segment_ids, y, saved, dy, dstate, options, **kwargs):
        den = saved[0] if options.saves_borders else saved
        return backend.backward(q, k, v, state, decay, segment_ids, y, den, dy, dstate, options, **kwargs)

    return backend._replace(forward=forward, backward=backward)


BACKENDS = {
    "xla": _without_borders(Backend(None, lambda problem: None, _xla_forward, _xla_backward)),
    "mosaic_gpu": Backend(
        "cuda",
        _kernel(mosaic_gpu_layout.objection),
        _mosaic_gpu_forward,
        _mosaic_gpu_backward,
        needs_wgmma,
        verified_only=True,
        automatic=mosaic_gpu_layout.automatic,
    ),
    "mosaic_tpu": _without_borders(
        Backend("tpu", _kernel(mosaic_tpu.objection), _mosaic_tpu_forward, _mosaic_tpu_backward, verified_only=True)
    ),
    "triton": _without_borders(Backend("cuda", _kernel(triton.objection), _triton_forward, _xla_backward)),
}
