"""The implementations of the general delta rule, under one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(q, k, v, u, z, log_decay, state, options) -> y, last state or None, `general_xla.Saved` or None
    backward(q, k, v, u, z, log_decay, state, saved, dy, dstate, options)
        -> dq, dk, dv, du, dz, dlog_decay, cotangent of the state or None

t >= 1, a multiple of 64; q, k, u, z (b, t, h, k), v, y and dy (b, t, h, v) of one dtype; log_decay (b, t, h, k) and
state (b, h, k, v) float32, None means zeros; dstate None likewise. Saved is there where options.save_states is.
Gradients have the dtypes of their inputs.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pallas_kernels.delta_chunks import general_xla
from pallas_kernels.delta_chunks.backends import KERNELS, Options
from pallas_kernels.delta_chunks.problem import GeneralProblem
from pallas_kernels.dispatch import Backend, hopper_objection, mesh_objection, needs_wgmma

__all__ = ["BACKENDS", "ENTRY_POINT", "KERNELS", "Options", "problem_of"]
ENTRY_POINT = "it within jax.shard_map"
"""What to call on a mesh."""


def problem_of(k, v) -> GeneralProblem:
    """The problem of a call's arrays."""
    b, t, h, width = v.shape
    return GeneralProblem(b=b, t=t, h=h, k=k.shape[3], v=width, dtype=v.dtype.name)


def _forward(stages: Callable[[], Any], q, k, v, u, z, log_decay, state, options, **how):
    made = stages()
    given = made.prepare(q, k, u, z, log_decay, **how)
    mix = made.inverse(given.system, **how)
    y, last, x, states = made.recur(v, given, mix, state, save=options.save_states, **how)
    saved = general_xla.Saved(x, states, mix) if options.save_states else None
    return y, last if options.return_state else None, saved


def _backward(stages: Callable[[], Any], q, k, v, u, z, log_decay, state, saved, dy, dstate, options, **how):
    """What is before states is made again: it is four times the inputs."""
    made = stages()
    given = made.prepare(q, k, u, z, log_decay, **how)
    dx, dv, after, first = made.recur_reverse(dy, given, saved.mix, dstate, **how)
    found = made.gradients(q, k, u, z, log_decay, v, saved.x, dy, dx, saved.states, after, **how)
    dq, dk, du, dz, dlog_decay = found
    return dq, dk, dv, du, dz, dlog_decay, None if state is None else first


def _backend(platform: str | None, objection, stages: Callable[[], Any], *rest, **options) -> Backend:
    """The backend of functions as those of `general_xla`."""
    forward, backward = (functools.partial(run, stages) for run in (_forward, _backward))
    return Backend(platform, objection, forward, backward, *rest, **options)


def _mosaic_gpu_objection(p: GeneralProblem) -> str | None:
    if p.b * p.h == 0:
        return f"batch {p.b} or heads {p.h} are 0"
    if (p.k, p.v) != (64, 64):
        return f"key and value widths {p.k}, {p.v} are not 64"
    return hopper_objection((p.dtype_name,)) or mesh_objection(ENTRY_POINT)


def _xla_stages() -> ModuleType:
    return general_xla


def _mosaic_gpu_stages() -> ModuleType:
    from pallas_kernels.delta_chunks import mosaic_gpu_general

    return mosaic_gpu_general


def _mosaic_tpu_objection(p: GeneralProblem) -> str | None:
    del p
    return "no kernel is written for TPUs"


BACKENDS = {
    "xla": _backend(None, lambda problem: None, _xla_stages),
    "mosaic_gpu": _backend("cuda", _mosaic_gpu_objection, _mosaic_gpu_stages, needs_wgmma, verified_only=True),
    "mosaic_tpu": _backend("tpu", _mosaic_tpu_objection, _xla_stages, verified_only=True),
}
