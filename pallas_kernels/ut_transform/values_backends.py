"""The implementations of `delta_values`, under one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(k, v, beta, log_decay, state, options) -> y, kept
    backward(k, v, beta, log_decay, state, y, kept, dy, dkeys, options) -> dk, dv, dbeta, dlog_decay, dstate

Arrays as in `backends.py`, v and y (b, t, h, v) in the dtype of the keys, state (b, h, k, v) float32, None: zeros.
kept, None where nothing is saved for a backward pass: mix, read, write, keep and the states before every chunk, (b, n,
h, k, v) in the dtype of v.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.delta_chunks import backends as recurrence_backends, xla as recurrence
from pallas_kernels.dispatch import Backend, needs_wgmma
from pallas_kernels.ut_transform import backends, xla
from pallas_kernels.ut_transform.problem import ValuesProblem


class Options(NamedTuple):
    """Everything static about a call but its shapes."""

    chunk: int
    save: bool
    """Whether `backward` may follow."""


class Kept(NamedTuple):
    """What a forward pass saves."""

    mix: jax.Array
    read: jax.Array
    write: jax.Array | None
    keep: jax.Array | None
    states: jax.Array


def _keep(k, keep, chunk: int):
    (b, t, h, width) = k.shape
    return jnp.ones((b, t // chunk, h, width), jnp.float32) if keep is None else keep


def _forward(transform, recur, k, v, beta, log_decay, state, *, options):
    mix, read, write, keep = transform(k, beta, log_decay, options=backends.Options(options.chunk))
    write_, keep_ = k if write is None else write, _keep(k, keep, options.chunk)
    y, _, states = recur(v, read, write_, mix, keep_, state, save_states=options.save)
    return y, Kept(mix, read, write, keep, states) if options.save else None


def _xla_forward(*arrays, options):
    return _forward(backends.BACKENDS["xla"].forward, recurrence.recur, *arrays, options=options)


def _xla_backward(k, v, beta, log_decay, state, y, kept, dy, dkeys, options):
    mix, read, write, keep, states = kept
    operands = dy, k if write is None else write, read, mix, _keep(k, keep, options.chunk)
    dv, dstate, after = recurrence.recur(*operands, None, save_states=True, reverse=True)
    dread, dwrite, dmix, dkeep = recurrence.gradients(v, read, operands[1], y, dy, dv, states, after)
    dkeep = None if log_decay is None else dkeep
    cotangents = dmix, dread, dwrite, dkeep, dkeys
    dk, dbeta, dlog_decay = xla.backward(k, beta, log_decay, *cotangents, chunk=options.chunk)
    return dk, dv, dbeta, dlog_decay, None if state is None else dstate


def _mosaic_gpu_forward(*arrays, options, interpret=None):
    from pallas_kernels.delta_chunks import mosaic_gpu

    transform, recur = (
        lambda *x, how=how, **y: how(*x, **y, interpret=interpret)
        for how in (backends.BACKENDS["mosaic_gpu"].forward, mosaic_gpu.recur)
    )
    return _forward(transform, recur, *arrays, options=options)


def _mosaic_gpu_backward(k, v, beta, log_decay, state, y, kept, dy, dkeys, options, *, interpret=None):
    from pallas_kernels.ut_transform import mosaic_gpu_values

    mix, read, write, keep, states = kept
    keep = _keep(k, keep, options.chunk)
    return mosaic_gpu_values.backward(
        k, v, beta, log_decay, keep, state, y, dy, dkeys, (mix, read, write, states), interpret=interpret
    )


def _objection(name: str):
    def whole(p: ValuesProblem) -> str | None:
        both: Any = backends.BACKENDS, recurrence_backends.BACKENDS
        return both[0][name].objection(p) or both[1][name].objection(p.recurrence)

    return whole


BACKENDS = {
    "xla": Backend(None, lambda problem: None, _xla_forward, _xla_backward),
    "mosaic_gpu": Backend(
        "cuda",
        _objection("mosaic_gpu"),
        _mosaic_gpu_forward,
        _mosaic_gpu_backward,
        needs_wgmma,
        verified_only=True,
    ),
}
