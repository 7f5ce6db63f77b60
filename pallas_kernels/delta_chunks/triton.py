"""The `triton` implementation of the recurrence over chunks; `triton_kernels.py` has the kernels, imported on use.

Bytes per token and head, with numbers of e bytes: the scan moves e (2v + (2k + 64) v / `VALUES`), where programs of one
row share what is in the cache, and in each direction of a backward pass e k v / 64 of states. The gradients read
e (2k + 4v + k v / 32) and write e (2k + 64). Forward with the UT transform at b4 h16 t8192 k64 v64, decays per token,
bfloat16: 0.8 GB, or 0.24 ms at the 3.35 TB/s of an H100.
"""

import functools

import jax.numpy as jnp

from pallas_kernels.delta_chunks.problem import Problem
from pallas_kernels.triton_call import WIDTHS, Launch, as_rows, like, run, unserved

VALUES = 32
"""Values of a program of the scan, and of a step of the gradients; half of it for wide keys, whose gradients otherwise
spill registers on sm_80."""


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    return unserved(p, WIDTHS) if p.chunk == 64 else f"chunks are of {p.chunk} tokens, not 64"


def recur(x, read, write, mix, keep, state, *, save_states: bool, reverse: bool = False):
    """`xla.recur` by a kernel."""
    launch = functools.partial(recur_launch, save_states=save_states, reverse=reverse)
    return as_rows(lambda *arrays: run(launch(*arrays)))(x, read, write, mix, keep, state)


def recur_launch(x, read, write, mix, keep, state, *, save_states: bool, reverse: bool) -> Launch:
    """Launch of `recur`."""
    from pallas_kernels.delta_chunks.triton_kernels import recur_kernel

    (b, _, h, v), k, n = x.shape, read.shape[3], mix.shape[1]
    states = like((b, n, h, k, v), x.dtype) if save_states else None
    outputs = like(x.shape, x.dtype), like((b, h, k, v), jnp.float32), states
    constants = {
        "N": n, "H": h, "K": k, "VD": v, "V": VALUES, "STATE_IN": state is not None, "SAVE": save_states,
        "REVERSE": reverse,
    }  # fmt: skip
    stages = 2 if k * x.dtype.itemsize <= 256 else 1
    inputs = x, read, write, mix, keep, state
    return Launch(recur_kernel, inputs, outputs, (b * h, -(-v // VALUES)), constants, stages=stages)


def gradients(x, read, write, y, dy, dx, before, after):
    """`xla.gradients` by a kernel."""
    return as_rows(lambda *arrays: run(gradients_launch(*arrays)))(x, read, write, y, dy, dx, before, after)


def gradients_launch(x, read, write, y, dy, dx, before, after) -> Launch:
    """Launch of `gradients`."""
    from pallas_kernels.delta_chunks.triton_kernels import gradients_kernel

    (b, _, h, v), (n, k) = x.shape, (before.shape[1], read.shape[3])
    outputs = (
        *[like(read.shape, read.dtype)] * 2,
        like((b, n, h, 64, 64), x.dtype),
        like((b, n, h, k), jnp.float32),
    )
    constants = {"H": h, "K": k, "VD": v, "V": VALUES if k <= 64 else VALUES // 2}
    inputs = x, read, write, y, dy, dx, before, after
    return Launch(gradients_kernel, inputs, outputs, (b * n * h,), constants, warps=8)
