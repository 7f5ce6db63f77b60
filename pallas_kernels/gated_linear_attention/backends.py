"""The implementations of gated linear attention, under one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(q, k, v, log_decay, state, options) -> y, final state or None, saved or None
    backward(q, k, v, log_decay, state, saved, dy, dstate, options)
        -> dq, dk, dv, dlog_decay, cotangent of the state or None

t >= 1; q, k (b, t, g, k), v and y (b, t, h, v), g dividing h; log_decay (b, t, h) or (b, t, h, k) float32, at most 0;
state (b, h, k, v) float32, None means zeros; dstate None likewise. Documents are log decays of `xla.RESET`.
saved are the states that the kernel options.save_states saves (`saved_shape`); other implementations return zeros.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from pallas_kernels.dispatch import Backend, hopper_objection, mesh_objection, needs_wgmma
from pallas_kernels.gated_linear_attention import mosaic_tpu, mosaic_tpu_channel, mosaic_tpu_layout, xla
from pallas_kernels.gated_linear_attention.problem import Problem

KERNELS = ("mosaic_gpu", "mosaic_tpu")
"""Implementations that are chosen where they serve."""


class Options(NamedTuple):
    """Everything static about a call but its shapes."""

    return_state: bool
    save_states: str | None
    """The kernel whose `backward` may follow and reads states that its `forward` saves."""


def _kernel(objection: Callable[[Problem], str | None]) -> Callable[[Problem], str | None]:
    """The objection of a hardware kernel, and what none of them serves."""

    def whole(p: Problem) -> str | None:
        if p.b * p.h == 0:
            return f"batch {p.b} or heads {p.h} are 0"
        return objection(p) or mesh_objection("sharded_gated_linear_attention")

    return whole


def _xla_forward(q, k, v, log_decay, state, options):
    y, last = xla.forward(q, k, v, log_decay, state)
    return y, last if options.return_state else None, _no_states(q, v, log_decay, options)


def _no_states(q, v, log_decay, options):
    """Zeros in place of what a kernel saves, or None."""
    if options.save_states is None:
        return None
    (b, t, h, v_dim), (g, k_dim) = v.shape, q.shape[2:]
    problem = Problem(b=b, t=t, h=h, g=g, k=k_dim, v=v_dim, dtype=v.dtype, channel=log_decay.ndim == 4)
    return jnp.zeros(saved_shape(problem, options.save_states), v.dtype)


def saved_shape(p: Problem, kernel: str) -> tuple[int, ...]:
    """Shape of the states that a kernel saves, in the dtype of the inputs.

    mosaic_gpu: tiles of 64 keys and values, of every chunk of 128 tokens or, with decays per channel, of 64.
    """
    if kernel == "mosaic_tpu":
        return mosaic_tpu_layout.border_shape(p)
    return (p.b * p.h * -(-p.t // (64 if p.channel else 128)) * p.k * p.v // 64, 64)


def _xla_backward(q, k, v, log_decay, state, saved, dy, dstate, options):
    return xla.backward(q, k, v, log_decay, state, dy, dstate)


def _mosaic_tpu_forward(q, k, v, log_decay, state, options, *, interpret=False):
    kernels, save = mosaic_tpu_channel if log_decay.ndim == 4 else mosaic_tpu, options.save_states == "mosaic_tpu"
    y, last, saved = kernels.forward(
        q, k, v, log_decay, state, return_state=options.return_state, save_states=save, interpret=interpret
    )
    return y, last, saved if save else _no_states(q, v, log_decay, options)


def _mosaic_tpu_backward(q, k, v, log_decay, state, saved, dy, dstate, options, *, interpret=False):
    operands, kernels = (q, k, v, log_decay, state), mosaic_tpu_channel if log_decay.ndim == 4 else mosaic_tpu
    if options.save_states != "mosaic_tpu":
        saved = kernels.forward(*operands, return_state=False, save_states=True, interpret=interpret)[2]
    return kernels.backward(*operands, saved, dy, dstate, interpret=interpret)


def _mosaic_gpu_objection(p: Problem) -> str | None:
    if p.channel and p.k in (64, 128) and p.v % 64:
        return f"value width {p.v} is not a multiple of 64"
    if p.k not in (64, 128) or (p.v not in (64, 128) and not p.channel):
        return f"key and value widths {p.k}, {p.v} are not 64 or 128"
    return hopper_objection((p.dtype_name,) * 3)


def _mosaic_gpu_forward(q, k, v, log_decay, state, options, *, interpret=None):
    save = options.save_states == "mosaic_gpu"
    y, last, saved = _mosaic_gpu_kernels(log_decay).forward(
        q, k, v, log_decay, state, return_state=options.return_state, save_states=save, interpret=interpret
    )
    return y, last, saved if save else _no_states(q, v, log_decay, options)


def _mosaic_gpu_backward(q, k, v, log_decay, state, saved, dy, dstate, options, *, interpret=None):
    saved = saved if options.save_states == "mosaic_gpu" else None
    return _mosaic_gpu_kernels(log_decay).backward(q, k, v, log_decay, state, saved, dy, dstate, interpret=interpret)


def _mosaic_gpu_kernels(log_decay):
    from pallas_kernels.gated_linear_attention import mosaic_gpu, mosaic_gpu_channel

    return mosaic_gpu_channel if log_decay.ndim == 4 else mosaic_gpu


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
    "mosaic_tpu": Backend(
        "tpu",
        _kernel(mosaic_tpu_layout.objection),
        _mosaic_tpu_forward,
        _mosaic_tpu_backward,
        verified_only=True,
    ),
}
