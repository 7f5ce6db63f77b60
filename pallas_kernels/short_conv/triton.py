"""The `triton` implementation: launches of `triton_kernels.py`, for all NVIDIA GPUs from capability 8.0 on.

Nothing here needs wgmma: the kernels are bound by memory. A forward pass moves the bytes of x, the gates and y once; a
backward pass those of x, the gates, dy and their gradients once, and 4 bytes per channel and block of tokens for each
tap, for the bias and for the three offsets.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.short_conv import xla
from pallas_kernels.short_conv.problem import Problem
from pallas_kernels.triton_call import Launch, as_rows, like, run, wrong_dtype

MAX_TAPS = 8


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    if p.t * p.d >= 2**31:
        return f"{p.t} tokens of {p.d} channels need indices of more than 32 bits"
    return wrong_dtype(p.dtype_name) or (None if 2 <= p.w <= MAX_TAPS else f"{p.w} taps are not 2 to {MAX_TAPS}")


def ages(documents: jax.Array | None, before: int) -> jax.Array | None:
    """Tokens before each token (b, t) in its document; document 0 has `before` tokens in the history."""
    if documents is None:
        return None
    place = jnp.arange(documents.shape[1], dtype=jnp.int32)[None]
    starts = jnp.diff(documents, axis=1, prepend=jnp.zeros_like(documents[:, :1])) != 0
    return place - jax.lax.cummax(jnp.where(starts, place, -before), axis=1)


def forward(x, taps, bias, input_gate, output_gate, history, documents, offsets, *, options):
    """Forward pass (contract in `api.py`); a batch of calls is one call with more rows."""

    @as_rows
    def call(*operands):
        from pallas_kernels.short_conv import triton_kernels as kernels

        x = operands[0]
        constants = _constants(operands, options)
        tokens, channels = kernels.FORWARD_TILE
        grid = (len(x) * -(-x.shape[1] // tokens), -(-x.shape[2] // channels))
        constants |= {"TOKENS": tokens, "CHANNELS": channels}
        outputs = (like(x.shape, x.dtype),)
        (y,) = run(Launch(kernels.forward_kernel, operands, outputs, grid, constants, warps=kernels.FORWARD_WARPS))
        return y

    return call(*_by_row(x, taps, bias, input_gate, output_gate, history, documents, offsets)), None


def backward(x, taps, bias, input_gate, output_gate, history, documents, offsets, saved, dy, *, options):
    """Backward pass (contract in `api.py`); a batch of calls is one call with more rows."""
    del saved

    @as_rows
    def call(dy, *operands):
        from pallas_kernels.short_conv import triton_kernels as kernels

        x, taps, bias, input_gate, output_gate, *_, offsets = operands
        (b, t, d), (groups, n_taps) = x.shape, taps.shape[:2]
        constants = _constants(operands, options)
        channels, blocks = (128 if n_taps <= 4 else 64), -(-t // kernels.BLOCK)
        n_sums = n_taps + (1 if offsets is None else 4)
        made = (None if z is None else like(x.shape, x.dtype) for z in (x, input_gate, output_gate))
        outputs = *made, like((b, blocks, n_sums, d), jnp.float32)
        constants |= {"TOKENS": kernels.BLOCK, "CHANNELS": channels}
        grid = (b * blocks, -(-d // channels))
        dx, d_in, d_out, sums = run(
            Launch(kernels.backward_kernel, (*operands, dy), outputs, grid, constants, warps=1)
        )  # fmt: skip
        sums = sums.reshape(groups, -1, n_sums, d).sum(1)
        return (
            dx,
            sums[:, :n_taps],
            None if bias is None else sums[:, n_taps],
            d_in,
            d_out,
            None if offsets is None else sums[:, n_taps + 1 :],
        )

    dx, d_taps, d_bias, d_in, d_out, d_offsets = call(
        dy, *_by_row(x, taps, bias, input_gate, output_gate, history, documents, offsets)
    )  # fmt: skip
    d_history = None
    if history is not None:
        # Only the first w - 1 outputs read the history.
        first = (None if z is None else z[:, : history.shape[1]] for z in (x, input_gate, output_gate, documents))
        x, input_gate, output_gate, documents = first
        operands = x, taps, bias, input_gate, output_gate, history, documents, offsets, None, dy[:, : history.shape[1]]
        d_history = xla.backward(*operands, options=options)[5]
    d_bias = None if bias is None else d_bias[0].astype(bias.dtype)
    d_offsets = None if offsets is None else d_offsets[0].astype(offsets.dtype)
    return dx, d_taps[0].astype(taps.dtype), d_bias, d_in, d_out, d_history, d_offsets


def _by_row(x, taps, bias, input_gate, output_gate, history, documents, offsets) -> tuple:
    """Operands that all have rows as the first axis: one row of taps, bias and offsets, and ages."""
    before = 0 if history is None else history.shape[1]
    taps, bias, offsets = (None if z is None else z[None].astype(jnp.float32) for z in (taps, bias, offsets))
    return x, taps, bias, input_gate, output_gate, history, ages(documents, before), offsets


def _constants(operands: tuple, options) -> dict:
    """Constants that both kernels have."""
    x, taps, bias, input_gate, output_gate, history, age, offsets = operands
    (b, t, d), (groups, n_taps) = x.shape, taps.shape[:2]
    return {
        "T": t, "D": d, "W": n_taps, "SHARED": b // groups, "N_PLAIN": options.n_plain, "BIAS": bias is not None,
        "IN": input_gate is not None, "OUT": output_gate is not None, "HISTORY": history is not None,
        "PACKED": age is not None, "OFFSETS": offsets is not None,
    }  # fmt: skip
