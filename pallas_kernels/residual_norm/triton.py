"""The `triton` implementation: launches of `triton_kernels.py`, for all NVIDIA GPUs from capability 8.0 on.

The kernels are bound by memory. A forward pass moves the bytes of x, y, r and n once, a backward pass those of r, both
cotangents, dx and, if its dtype is another one, dy, and 8 bytes per channel and block of tokens.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.residual_norm.problem import Problem
from pallas_kernels.triton_call import Launch, as_rows, like, run, wrong_dtype

MAX_WIDTH = 8192
"""Channels that the registers of a program hold."""


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    too_wide = None if p.d <= MAX_WIDTH else f"width {p.d} is more than {MAX_WIDTH}"
    return wrong_dtype(p.dtype_name, jnp.dtype(p.stream_dtype).name) or too_wide


def forward(x, y, scale, bias, *, options):
    """Forward pass (contract in `api.py`); a batch of calls is one call with more rows."""

    @as_rows
    def call(x, y, scale, bias):
        from pallas_kernels.residual_norm import triton_kernels as kernels

        constants, warps = _constants(x, scale, bias, options)
        outputs = None if y is None else like(x.shape, x.dtype), like(x.shape, options.dtype)
        grid = (len(scale) * -(-constants["SHARED"] // constants["TILE"]),)
        constants["ADDS"] = y is not None
        r, n = run(Launch(kernels.forward_kernel, (x, y, scale, bias), outputs, grid, constants, warps=warps))
        return x if y is None else r, n

    return *call(x, y, *_by_row(scale, bias)), None


def backward(x, y, scale, bias, r, saved, dr, dn, *, options):
    """Backward pass (contract in `api.py`); a batch of calls is one call with more rows."""
    del x, y, saved
    casts = options.branch_dtype not in (None, r.dtype.name)

    @as_rows
    def call(r, dr, dn, scale, bias):
        from pallas_kernels.residual_norm import triton_kernels as kernels

        constants, warps = _constants(r, scale, bias, options)
        blocks = -(-constants["SHARED"] // kernels.ROWS)
        outputs = (
            like(r.shape, r.dtype),
            like(r.shape, options.branch_dtype) if casts else None,
            like((len(scale), blocks, 1 + (bias is not None), r.shape[-1]), jnp.float32),
        )
        constants |= {"CAST": casts, "ROWS": kernels.ROWS}
        inputs, grid = (r, scale, dr, dn), (len(scale) * blocks,)
        dx, dy, sums = run(Launch(kernels.backward_kernel, inputs, outputs, grid, constants, warps=warps))
        sums = sums.sum(1)
        return dx, dy, sums[:, 0], None if bias is None else sums[:, 1]

    dx, dy, d_scale, d_bias = call(r, dr, dn, *_by_row(scale, bias))
    if options.branch_dtype is not None and not casts:
        dy = dx
    d_bias = None if bias is None else d_bias[0].astype(bias.dtype)
    return dx, dy, d_scale[0].astype(scale.dtype), d_bias


def _by_row(scale, bias) -> tuple:
    """Scale and bias as one row each."""
    return scale[None].astype(jnp.float32), None if bias is None else bias[None].astype(jnp.float32)


def _constants(x: jax.Array, scale: jax.Array, bias: jax.Array | None, options) -> tuple[dict, int]:
    """Constants that both kernels have, and warps of a program: 4 numbers of a tile per thread, of the widest tile 8.

    With more, loads of float32 and of bfloat16 have different layouts, and pass through shared memory.
    """
    b, t, d = x.shape
    width = max(64, 1 << (d - 1).bit_length())
    tile = max(1, 1024 // width)
    warps = {1024: 8, 2048: 16, 4096: 32, 8192: 32}[tile * width]
    constants = {
        "SHARED": b * t // len(scale), "D": d, "EPS": options.eps, "CENTRED": options.centred,
        "BIAS": bias is not None, "TILE": tile, "WIDTH": width,
    }  # fmt: skip
    return constants, warps
