"""Selective scan in Triton: launches of `triton_kernels.py`.

Per token and channel, at 16 bits and float32 delta, n = 16: 8 bytes forward, and 2 (bfloat16) or 4 for states saved for
the backward pass; 14 backward, 2 or 4 of saved states, and 4 or 8 for partial sums db and dc, written and read.
"""

import jax.numpy as jnp

from pallas_kernels.selective_scan.problem import Problem
from pallas_kernels.triton_call import Launch, as_rows, like, run, unserved

BLOCK, CHANNELS, WARPS = 16, 32, 4
"""Tokens between saved states, channels and warps of a program."""


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    return f"numbers of state {p.n} are more than 16" if p.n > 16 else unserved(p)


def saved_like(x, delta, a, *_, **__):
    """States (d, n) before every 16 tokens."""
    rows, t, d = x.shape
    return like((rows, -(-t // BLOCK), d, a.shape[-1]), _partial_dtype(x))


def forward(x, delta, a, b, c, keep, state, options):
    """y, the last state or None, and the states for `backward` or None (contract in `api.py`)."""

    call = as_rows(lambda *operands: run(forward_launch(*operands, options=options)))
    return call(x, delta, jnp.broadcast_to(a, (len(x), *a.shape)), b, c, keep, state)


def backward(x, delta, a, b, c, keep, state, saved, dy, dstate, options):
    """Gradients of x, delta, a, b, c and state (or None); saved: the states of `forward`."""

    def rows(*operands):
        dx, ddelta, da, sums, dstart = run(backward_launch(*operands))
        sums = sums.astype(jnp.float32).sum(1).astype(operands[3].dtype)
        return dx, ddelta, da, sums[:, 0], sums[:, 1], dstart

    rates = jnp.broadcast_to(a, (len(x), *a.shape))
    dx, ddelta, da, db, dc, dstart = as_rows(rows)(x, delta, rates, b, c, keep, saved, dy, dstate)
    return dx, ddelta, da.sum(0), db, dc, None if state is None else dstart


def forward_launch(x, delta, rates, b, c, keep, state, options) -> Launch:
    """Launch of the forward kernel; rates: a per row (b, d, n)."""
    from pallas_kernels.selective_scan.triton_kernels import forward_kernel

    outputs = (
        like(x.shape, x.dtype),
        like(rates.shape, jnp.float32) if options.return_state else None,
        saved_like(x, delta, rates) if options.save_states else None,
    )
    flags = {"STATE_IN": state is not None, "STATE_OUT": options.return_state, "SAVE": options.save_states}
    inputs = x, delta, rates, b, c, keep, state
    return Launch(forward_kernel, inputs, outputs, _grid(x), _constants(rates, x, keep) | flags, WARPS)


def backward_launch(x, delta, rates, b, c, keep, saved, dy, dlast) -> Launch:
    """Launch of the backward kernel; db and dc are sums over the channels of a program, (b, programs, 2, t, n)."""
    from pallas_kernels.selective_scan.triton_kernels import backward_kernel

    programs, rows = _grid(x)
    whole = like(rates.shape, jnp.float32)
    sums = like((rows, programs, 2, *b.shape[1:]), _partial_dtype(x))
    outputs = like(x.shape, x.dtype), like(delta.shape, delta.dtype), whole, sums, whole
    inputs = x, delta, rates, b, c, keep, saved, dy, dlast
    constants = _constants(rates, x, keep) | {"STATE_OUT": dlast is not None}
    return Launch(backward_kernel, inputs, outputs, (programs, rows), constants, WARPS)


def _grid(x) -> tuple[int, int]:
    return -(-x.shape[2] // CHANNELS), x.shape[0]


def _constants(rates, x, keep) -> dict[str, int | bool]:
    _, d, n = rates.shape
    registers = max(1, 1 << max(n - 1, 0).bit_length() >> 2)
    sizes = {"T": x.shape[1], "D": d, "N": n, "R": registers, "W": WARPS, "BLOCK": BLOCK}
    return sizes | {"DOCUMENTS": keep is not None}


def _partial_dtype(x):
    """Saved states and partial sums are bfloat16 for bfloat16 inputs, else float32."""
    return jnp.bfloat16 if x.dtype == jnp.bfloat16 else jnp.float32
