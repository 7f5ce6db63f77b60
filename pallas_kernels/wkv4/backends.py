"""The implementations of wkv4, under one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(k, v, w, u, keep, state, options) -> y, last state or None, saved or None
    backward(k, v, w, u, keep, state, saved, last_max, dy, dstate, options)
        -> dk, dv, dw, du, cotangent of the state or None

t >= 1; k, v, y, dy (b, t, d) of one dtype; w, u (d,) float32, w positive; keep (b, t) float32, 0 at the first token of
every document but the first and 1 elsewhere, or None; state a `Wkv4State`, None means no tokens; dstate likewise.
last_max is `max` of the last state, there where that is. Gradients have the dtypes of their inputs, and the cotangent
of the state is there where the state is. keep and `max` have no gradient.

saved are the sums that the kernel options.save_states saves (`saved_like`); other implementations return zeros. Where
options.save_states is not the name of the kernel that runs backward, `saved` is None or not its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import Backend, hopper_objection, mesh_objection, needs_wgmma
from pallas_kernels.wkv4 import mosaic_tpu, mosaic_tpu_layout, mosaic_tpu_vjp, xla
from pallas_kernels.wkv4.problem import Problem

KERNELS = ("mosaic_gpu", "mosaic_tpu")
"""Implementations that are chosen where they serve."""


class Options(NamedTuple):
    """Everything static about a call but its shapes."""

    return_state: bool
    save_states: str | None
    """The kernel whose `backward` may follow and reads sums that its `forward` saves."""


def problem_of(k) -> Problem:
    """The problem of a call's keys."""
    b, t, d = k.shape
    return Problem(b=b, t=t, d=d, dtype=k.dtype.name)


def _kernel(objection: Callable[[Problem], str | None]) -> Callable[[Problem], str | None]:
    """The objection of a hardware kernel, and what none of them serves."""

    def whole(p: Problem) -> str | None:
        if p.b * p.d == 0:
            return f"batch {p.b} or channels {p.d} are 0"
        return objection(p) or mesh_objection("sharded_wkv4")

    return whole


def saved_like(p: Problem, kernel: str) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the sums that a kernel saves.

    mosaic_tpu: num, den, top before every block of tokens. mosaic_gpu: two numbers per channel before every 16 tokens.
    """
    if kernel == "mosaic_tpu":
        return jax.ShapeDtypeStruct(mosaic_tpu_layout.border_shape(p), jnp.float32)
    return jax.ShapeDtypeStruct((2, p.b, -(-p.t // 16), p.d), jnp.float32)


def _no_sums(k, options):
    """Zeros in place of what a kernel saves, or None."""
    if options.save_states is None:
        return None
    like = saved_like(problem_of(k), options.save_states)
    return jnp.zeros(like.shape, like.dtype)


def _xla_forward(k, v, w, u, keep, state, options):
    y, last = xla.forward(k, v, w, u, keep, state)
    return y, last if options.return_state else None, _no_sums(k, options)


def _xla_backward(k, v, w, u, keep, state, saved, last_max, dy, dstate, options):
    return xla.backward(k, v, w, u, keep, state, dy, dstate)


def _mosaic_gpu_objection(p: Problem) -> str | None:
    if p.d % 256:
        return f"channels {p.d} are not a multiple of 256"
    return hopper_objection((p.dtype_name,), served=("bfloat16", "float32"))


def _mosaic_gpu_forward(k, v, w, u, keep, state, options, *, interpret=None):
    from pallas_kernels.wkv4 import mosaic_gpu

    save = options.save_states == "mosaic_gpu"
    y, last, saved = mosaic_gpu.forward(
        k, v, w, u, keep, state, return_state=options.return_state, save_states=save, interpret=interpret
    )
    return y, last, saved if save else _no_sums(k, options)


def _mosaic_gpu_backward(k, v, w, u, keep, state, saved, last_max, dy, dstate, options, *, interpret=None):
    from pallas_kernels.wkv4 import mosaic_gpu_vjp

    saved = saved if options.save_states == "mosaic_gpu" else None
    return mosaic_gpu_vjp.backward(k, v, w, u, keep, state, saved, last_max, dy, dstate, interpret=interpret)


def _mosaic_tpu_forward(k, v, w, u, keep, state, options, *, interpret=False):
    save = options.save_states == "mosaic_tpu"
    y, last, saved = mosaic_tpu.forward(
        k, v, w, u, keep, state, return_state=options.return_state, save_states=save, interpret=interpret
    )
    return y, last, saved if save else _no_sums(k, options)


def _mosaic_tpu_backward(k, v, w, u, keep, state, saved, last_max, dy, dstate, options, *, interpret=False):
    operands = k, v, w, u, keep, state
    if options.save_states != "mosaic_tpu":
        saved = mosaic_tpu.forward(*operands, return_state=False, save_states=True, interpret=interpret)[2]
    return mosaic_tpu_vjp.backward(*operands, saved, last_max, dy, dstate, interpret=interpret)


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
