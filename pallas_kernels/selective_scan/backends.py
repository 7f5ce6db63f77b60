"""The implementations of the selective scan, under one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(x, delta, a, b, c, keep, state, options) -> y, final state or None, saved or None
    backward(x, delta, a, b, c, keep, state, saved, dy, dstate, options)
        -> dx, ddelta, da, db, dc, cotangent of the state or None

t >= 1; x, y, dy (b, t, d); delta (b, t, d), float32 or the dtype of x, at least 0; a (d, n) float32, at most 0; b, c
(b, t, n) in the dtype of x; keep (b, t) float32, 0 at the first token of every document but the first and 1 elsewhere,
or None; state (b, d, n) float32, None means zeros; dstate likewise. Gradients have the dtypes of their inputs, and the
cotangent of the state is there where the state is. keep has no gradient.

saved are the states that the kernel options.save_states saves (`saved_like`); other implementations return zeros. Where
options.save_states is not the name of the kernel that runs backward, `saved` is None or not its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import Backend, hopper_objection, mesh_objection, needs_wgmma
from pallas_kernels.selective_scan import mosaic_tpu, mosaic_tpu_layout, mosaic_tpu_vjp, xla
from pallas_kernels.selective_scan.problem import Problem

KERNELS = ("mosaic_gpu", "mosaic_tpu")
"""Implementations that are chosen where they serve."""


class Options(NamedTuple):
    """Everything static about a call but its shapes."""

    return_state: bool
    save_states: str | None
    """The kernel whose `backward` may follow and reads states that its `forward` saves."""


def problem_of(x, delta, a) -> Problem:
    """The problem of a call's arrays."""
    (b, t, d), n = x.shape, a.shape[1]
    return Problem(b=b, t=t, d=d, n=n, dtype=x.dtype.name, delta_dtype=delta.dtype.name)


def _kernel(objection: Callable[[Problem], str | None]) -> Callable[[Problem], str | None]:
    """The objection of a hardware kernel, and what none of them serves."""

    def whole(p: Problem) -> str | None:
        if p.b * p.d * p.n == 0:
            return f"batch {p.b}, channels {p.d} or numbers of state {p.n} are 0"
        return objection(p) or mesh_objection("sharded_selective_scan")

    return whole


def saved_like(p: Problem, kernel: str) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the states that a kernel saves.

    mosaic_tpu: states (n, d) before every block of tokens. mosaic_gpu: states (d, 16) before every 16 tokens, of
    lengths that are multiples of 32.
    """
    if kernel == "mosaic_tpu":
        return jax.ShapeDtypeStruct(mosaic_tpu_layout.border_shape(p), jnp.float32)
    return jax.ShapeDtypeStruct((p.b, -(-p.t // 32) * 2, p.d, 16), jnp.bfloat16)


def _no_states(x, delta, a, options):
    """Zeros in place of what a kernel saves, or None."""
    if options.save_states is None:
        return None
    like = saved_like(problem_of(x, delta, a), options.save_states)
    return jnp.zeros(like.shape, like.dtype)


def _xla_forward(x, delta, a, b, c, keep, state, options):
    y, last = xla.forward(x, delta, a, b, c, keep, state)
    return y, last if options.return_state else None, _no_states(x, delta, a, options)


def _xla_backward(x, delta, a, b, c, keep, state, saved, dy, dstate, options):
    return xla.backward(x, delta, a, b, c, keep, state, dy, dstate)


def _mosaic_tpu_forward(x, delta, a, b, c, keep, state, options, *, interpret=False):
    save = options.save_states == "mosaic_tpu"
    y, last, saved = mosaic_tpu.forward(
        x, delta, a, b, c, keep, state, return_state=options.return_state, save_states=save, interpret=interpret
    )
    return y, last, saved if save else _no_states(x, delta, a, options)


def _mosaic_tpu_backward(x, delta, a, b, c, keep, state, saved, dy, dstate, options, *, interpret=False):
    operands = x, delta, a, b, c, keep, state
    if options.save_states != "mosaic_tpu":
        saved = mosaic_tpu.forward(*operands, return_state=False, save_states=True, interpret=interpret)[2]
    return mosaic_tpu_vjp.backward(*operands, saved, dy, dstate, interpret=interpret)


def _mosaic_gpu_objection(p: Problem) -> str | None:
    if p.d % 32:
        return f"channels {p.d} are not a multiple of 32"
    if p.n > 16:
        return f"numbers of state {p.n} are more than 16"
    if p.dtype_name != "bfloat16":
        return f"dtype of x is {p.dtype_name}, not bfloat16"
    return hopper_objection((p.dtype_name,))


def _mosaic_gpu_forward(x, delta, a, b, c, keep, state, options, *, interpret=None):
    from pallas_kernels.selective_scan import mosaic_gpu

    save = options.save_states == "mosaic_gpu"
    y, last, saved = mosaic_gpu.forward(
        x, delta, a, b, c, keep, state, return_state=options.return_state, save_states=save, interpret=interpret
    )
    return y, last, saved if save else _no_states(x, delta, a, options)


def _mosaic_gpu_backward(x, delta, a, b, c, keep, state, saved, dy, dstate, options, *, interpret=None):
    from pallas_kernels.selective_scan import mosaic_gpu_vjp

    saved = saved if options.save_states == "mosaic_gpu" else None
    return mosaic_gpu_vjp.backward(x, delta, a, b, c, keep, state, saved, dy, dstate, interpret=interpret)


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
