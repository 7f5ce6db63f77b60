"""The `triton` implementation, for NVIDIA GPUs from compute capability 8.0 on; the kernels are in `triton_kernels.py`.

Forward, one kernel scans the states and a second makes the outputs of all chunks; one token is one kernel. Backward
repeats the scan of states, scans their cotangents, and makes dV and the other gradients of all chunks.

Bytes per token and head, in bfloat16 and without decays, of keys of k and values of v channels: forward 2 k + 2 v
(states) and 4 k + 4 v (outputs), and 4 k v / 64 for states, written and read. Backward 4 k + 4 v for both scans, 4 k +
4 v for dV, 8 k + 4 v for the other gradients, and 10 k v / 64. At b4 h16 t8192 k64 v64 these are 537 MB and 1,275 MB:
160 and 381 us of an H100 (3.35 TB/s). Decays of float32 are read once per kernel: per channel, 4 k bytes each.
"""

from typing import Any

import jax.numpy as jnp

from pallas_kernels.gated_linear_attention.problem import Problem
from pallas_kernels.triton_call import WIDTHS, Launch, as_rows, like, run, unserved

CHUNK = 64
"""Tokens of a chunk; `LEVELS` is its binary logarithm."""
LEVELS = 6


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    return unserved(p, WIDTHS)


def automatic(p: Problem) -> bool:
    """Whether the kernels may be chosen automatically: for float32 some spill up to 232 bytes of registers on sm_80."""
    return p.dtype_name != "float32"


def forward(q, k, v, log_decay, state, options):
    """Forward pass (contract in `api.py`); a batch of calls is one call with more rows."""

    @as_rows
    def call(q, k, v, log_decay, state):
        if v.shape[1] == 1:
            y, last = run(_step(q, k, v, log_decay, state, last=options.return_state))
        else:
            states, last = run(_states(k, v, log_decay, state, last=options.return_state))
            (y,) = run(_outputs(q, k, v, log_decay, states))
        return y, last

    return *call(q, k, v, log_decay, state), None


def backward(q, k, v, log_decay, state, saved, dy, dstate, options):
    """Backward pass (contract in `api.py`); a batch of calls is one call with more rows."""
    del saved, options

    @as_rows
    def call(q, k, v, log_decay, state, dy, dstate):
        states, _ = run(_states(k, v, log_decay, state))
        dstates, first = run(_states(q, dy, log_decay, dstate, last=state is not None, reverse=True))
        (dv,) = run(_outputs(q, k, dy, log_decay, dstates, reverse=True))
        dq, dk, dlog_decay = run(_gradients(q, k, v, dy, log_decay, states, dstates))
        dq, dk = (x.reshape(*q.shape[:3], -1, q.shape[3]).sum(3).astype(q.dtype) for x in (dq, dk))
        return dq, dk, dv, dlog_decay, first

    return call(q, k, v, log_decay, state, dy, dstate)


def _sizes(keys, values, log_decay) -> dict[str, Any]:
    (_, t, h, v_dim), (g, k_dim) = values.shape, keys.shape[2:]
    return {"T": t, "H": h, "G": g, "K": k_dim, "V": v_dim, "C": CHUNK, "CHANNEL": log_decay.ndim == 4}


def _state_shape(keys, values) -> tuple[int, ...]:
    return (*values.shape[::2][:2], keys.shape[3], values.shape[3])


def _states(keys, values, log_decay, start, *, last: bool = False, reverse: bool = False) -> Launch:
    """States (b h, n, k, v) in the dtype of the values, and the last one."""
    from pallas_kernels.gated_linear_attention import triton_kernels as kernels

    b, h, k_dim, v_dim = shape = _state_shape(keys, values)
    states = like((b * h, -(-values.shape[1] // CHUNK), k_dim, v_dim), values.dtype)
    blocks = {"BK": min(k_dim, 64), "BV": 32}
    constants = _sizes(keys, values, log_decay) | blocks
    constants |= {"REVERSE": reverse, "STATE_IN": start is not None, "STATE_OUT": last}
    grid = (b * h, k_dim // blocks["BK"], -(-v_dim // blocks["BV"]))
    outputs = states, like(shape, jnp.float32) if last else None
    return Launch(kernels.state_kernel, (keys, values, log_decay, start), outputs, grid, constants, stages=2)


def _outputs(q, k, v, log_decay, states, *, reverse: bool = False) -> Launch:
    """y, or in reverse dv from dy and the cotangents of states."""
    from pallas_kernels.gated_linear_attention import triton_kernels as kernels

    constants = _sizes(q, v, log_decay) | {"BK": min(q.shape[3], 32), "BV": 32, "LEVELS": LEVELS, "REVERSE": reverse}
    outputs = (like(v.shape, v.dtype),)
    return Launch(kernels.output_kernel, (q, k, v, log_decay, states), outputs, states.shape[:2], constants)


def _gradients(q, k, v, dy, log_decay, states, dstates) -> Launch:
    """dq and dk (b, t, h, k), float32 if heads share keys, and the gradient of the log decays."""
    from pallas_kernels.gated_linear_attention import triton_kernels as kernels

    large = log_decay.ndim == 4 or v.dtype == jnp.float32  # spills registers with wider blocks or fewer warps
    constants = _sizes(q, v, log_decay) | {"BK": 16 if large else min(q.shape[3], 32), "BV": 32, "LEVELS": LEVELS}
    of_keys = like((*v.shape[:3], q.shape[3]), q.dtype if q.shape[2] == v.shape[2] else jnp.float32)
    outputs = of_keys, of_keys, like(log_decay.shape, jnp.float32)
    inputs = q, k, v, dy, log_decay, states, dstates
    return Launch(kernels.gradient_kernel, inputs, outputs, states.shape[:2], constants, warps=8 if large else 4)


def _step(q, k, v, log_decay, start, *, last: bool) -> Launch:
    """y and the state after one token."""
    from pallas_kernels.gated_linear_attention import triton_kernels as kernels

    shape = _state_shape(k, v)
    constants = _sizes(k, v, log_decay) | {"BV": 32, "STATE_IN": start is not None, "STATE_OUT": last}
    del constants["T"], constants["C"]
    grid = (shape[0] * shape[1], -(-shape[3] // 32))
    outputs = like(v.shape, v.dtype), like(shape, jnp.float32) if last else None
    return Launch(kernels.step_kernel, (q, k, v, log_decay, start), outputs, grid, constants)
