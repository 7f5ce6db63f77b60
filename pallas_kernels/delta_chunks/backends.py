"""The implementations of the recurrence over chunks, under one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(x, read, write, mix, keep, state, options) -> y, last state or None, states or None
    backward(x, read, write, mix, keep, state, y, states, dy, dstate, options)
        -> dx, dread, dwrite, dmix, dkeep, cotangent of the state or None

t a multiple of the chunk c, n = t / c >= 1; x, y, dy (b, t, h, v), read, write (b, t, h, k) and mix (b, n, h, c, c) of
one dtype; keep (b, n, h, k) float32; state (b, h, k, v) float32, None means zeros; dstate likewise. The states, those
before every chunk, are there where options.save_states is, (b, n, h, k, v) in the dtype of x. Gradients have the
dtypes of their inputs, and the cotangent of the state is there where the state is.
"""

from collections.abc import Callable
from typing import NamedTuple

from pallas_kernels.delta_chunks import xla
from pallas_kernels.delta_chunks.problem import Problem
from pallas_kernels.dispatch import Backend, hopper_objection, mesh_objection, needs_wgmma

KERNELS = ("mosaic_gpu", "mosaic_tpu")
"""Implementations that are chosen where they serve."""


class Options(NamedTuple):
    """Everything static about a call but its shapes."""

    return_state: bool
    save_states: bool
    """Whether `backward` may follow."""


def problem_of(x, read, mix) -> Problem:
    """The problem of a call's arrays."""
    b, t, h, v = x.shape
    return Problem(b=b, t=t, h=h, k=read.shape[3], v=v, chunk=mix.shape[3], dtype=x.dtype.name)


def _kernel(objection: Callable[[Problem], str | None]) -> Callable[[Problem], str | None]:
    """The objection of a hardware kernel, and what none of them serves."""

    def whole(p: Problem) -> str | None:
        if p.b * p.h == 0:
            return f"batch {p.b} or heads {p.h} are 0"
        return objection(p) or mesh_objection("sharded_delta_chunks")

    return whole


def _backend(platform: str | None, objection, recur, gradients, *rest, **options) -> Backend:
    """The backend of functions as `xla.recur`, which serves both passes, and `xla.gradients`."""

    def forward(x, read, write, mix, keep, state, options, **how):
        y, last, states = recur(x, read, write, mix, keep, state, save_states=options.save_states, **how)
        return y, last if options.return_state else None, states

    def backward(x, read, write, mix, keep, state, y, states, dy, dstate, options, **how):
        dx, first, after = recur(dy, write, read, mix, keep, dstate, save_states=True, reverse=True, **how)
        found = gradients(x, read, write, y, dy, dx, states, after, **how)
        return dx, *found, None if state is None else first

    return Backend(platform, objection, forward, backward, *rest, **options)


def _mosaic_gpu_objection(p: Problem) -> str | None:
    if p.chunk != 64:
        return f"chunks are of {p.chunk} tokens, not 64"
    if p.k not in (64, 128):
        return f"key width {p.k} is not 64 or 128"
    if p.v % 64 or p.v == 0:
        return f"value width {p.v} is not a multiple of 64"
    return hopper_objection((p.dtype_name,))


def _mosaic_gpu_recur(*operands, **options):
    from pallas_kernels.delta_chunks import mosaic_gpu

    return mosaic_gpu.recur(*operands, **options)


def _mosaic_gpu_gradients(x, read, *arrays, interpret=None):
    from pallas_kernels.delta_chunks import mosaic_gpu_vjp

    if mosaic_gpu_vjp.stages(read.shape[3], x.shape[3]) == 0:  # a chunk exceeds the shared memory
        return xla.gradients(x, read, *arrays)
    return mosaic_gpu_vjp.gradients(x, read, *arrays, interpret=interpret)


def _mosaic_tpu_objection(p: Problem) -> str | None:
    del p
    return "no kernel is written for TPUs"


BACKENDS = {
    "xla": _backend(None, lambda problem: None, xla.recur, xla.gradients),
    "mosaic_gpu": _backend(
        "cuda",
        _kernel(_mosaic_gpu_objection),
        _mosaic_gpu_recur,
        _mosaic_gpu_gradients,
        needs_wgmma,
        verified_only=True,
    ),
    "mosaic_tpu": _backend("tpu", _kernel(_mosaic_tpu_objection), xla.recur, xla.gradients, verified_only=True),
}
