"""The implementations of the UT transform, under one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(x, beta, log_decay, options) -> mix, read, write, keep
    backward(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys, options) -> dx, dbeta, dlog_decay

t a multiple of the chunk c, n = t / c >= 1. x: keys (b, t, h, k), or scores (b, n, h, c, c), of one dtype with mix (b,
n, h, c, c), read and write (b, t, h, k). beta (b, t, h) and log_decay (b, t, h) or (b, t, h, k), float32, None where
there is none; keep (b, n, h, k) float32. Of scores there are no read, write, keep, without decays no keep, and write
is the keys themselves: None. dkeys is the cotangent of other users of the keys. Gradients have the dtypes of their
inputs, and are None where these are; cotangents are None where there is nothing; dwrite is there for all keys.
"""

from collections.abc import Callable
from typing import NamedTuple

from pallas_kernels.dispatch import Backend, hopper_objection, mesh_objection, needs_wgmma
from pallas_kernels.ut_transform import xla
from pallas_kernels.ut_transform.problem import Problem

KERNELS = ("mosaic_gpu", "mosaic_tpu")
"""Implementations that are chosen where they serve."""


class Options(NamedTuple):
    """Everything static about a call but its shapes."""

    chunk: int


def problem_of(x, beta, log_decay, chunk: int) -> Problem:
    """The problem of a call's arrays."""
    decay = "none" if log_decay is None else "token" if log_decay.ndim == 3 else "channel"
    (b, t, h), k = (x.shape[:3], x.shape[3]) if x.ndim == 4 else ((x.shape[0], x.shape[1] * chunk, x.shape[2]), 0)
    return Problem(b=b, t=t, h=h, k=k, decay=decay, beta=beta is not None, chunk=chunk, dtype=x.dtype.name)


def _kernel(objection: Callable[[Problem], str | None]) -> Callable[[Problem], str | None]:
    """The objection of a hardware kernel, and what none of them serves."""

    def whole(p: Problem) -> str | None:
        if p.b * p.h == 0:
            return f"batch {p.b} or heads {p.h} are 0"
        return objection(p) or mesh_objection("sharded_ut_transform")

    return whole


def _xla_forward(x, beta, log_decay, options):
    return xla.forward(x, beta, log_decay, options.chunk)


def _xla_backward(*arrays, options):
    return xla.backward(*arrays, chunk=options.chunk)


def _mosaic_gpu_objection(p: Problem) -> str | None:
    if p.chunk != 64:
        return f"chunks are of {p.chunk} tokens, not 64"
    if p.k not in (0, 64, 128):
        return f"key width {p.k} is not 64 or 128"
    if p.decay == "channel" and p.k != 64:
        return f"with decays per channel key width {p.k} is not 64"
    return hopper_objection((p.dtype_name,))


def _mosaic_gpu_forward(x, beta, log_decay, options, *, interpret=None):
    del options
    from pallas_kernels.ut_transform import mosaic_gpu, mosaic_gpu_channel

    kernels = mosaic_gpu if log_decay is None or log_decay.ndim == 3 else mosaic_gpu_channel
    return kernels.forward(x, beta, log_decay, interpret=interpret)


def _mosaic_gpu_backward(x, beta, log_decay, *cotangents, options, interpret=None):
    del options
    from pallas_kernels.ut_transform import mosaic_gpu_channel_vjp, mosaic_gpu_vjp

    kernels = mosaic_gpu_vjp if log_decay is None or log_decay.ndim == 3 else mosaic_gpu_channel_vjp
    return kernels.backward(x, beta, log_decay, *cotangents, interpret=interpret)


def _mosaic_tpu_objection(p: Problem) -> str | None:
    del p
    return "no kernel is written for TPUs"


BACKENDS = {
    "xla": Backend(None, lambda problem: None, _xla_forward, _xla_backward),
    "mosaic_gpu": Backend(
        "cuda",
        _kernel(_mosaic_gpu_objection),
        _mosaic_gpu_forward,
        _mosaic_gpu_backward,
        needs_wgmma,
        verified_only=True,
    ),
    "mosaic_tpu": Backend("tpu", _kernel(_mosaic_tpu_objection), _xla_forward, _xla_backward, verified_only=True),
}
