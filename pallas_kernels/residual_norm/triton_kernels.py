"""Triton kernels of residual_norm: one for the sum and its norm, one for all gradients.

A program holds whole tokens in registers: tiles of TILE tokens and WIDTH >= D channels. Groups of SHARED tokens have
the same scale and bias.
"""

import triton
import triton.language as tl

ROWS = 32
"""Tokens of a backward program, which adds up their gradients of scale and bias."""


@triton.jit
def _normed(r, wide, D: tl.constexpr, EPS: tl.constexpr, CENTRED: tl.constexpr):
    """`(r - mean) / std` and `1 / std` of rows, 0 outside of `wide`."""
    if CENTRED:
        r = tl.where(wide, r - tl.sum(r, axis=1, keep_dims=True) / D, 0.0)
    rate = tl.rsqrt(tl.sum(r * r, axis=1, keep_dims=True) / D + EPS)
    return r * rate, rate


@triton.jit
def forward_kernel(
    x_ptr, y_ptr, scale_ptr, bias_ptr, r_ptr, n_ptr,
    SHARED: tl.constexpr, D: tl.constexpr, EPS: tl.constexpr, CENTRED: tl.constexpr, ADDS: tl.constexpr,
    BIAS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """r and n of a tile; without ADDS r is x and not written."""
    blocks: tl.constexpr = (SHARED + TILE - 1) // TILE
    group, begin = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * TILE
    row, channel = tl.arange(0, TILE)[:, None], tl.arange(0, WIDTH)[None, :]
    start, at, wide = (group * SHARED + begin) * D, row * D + channel, channel < D
    real = wide & (begin + row < SHARED)
    r = tl.load(x_ptr + start + at, mask=real, other=0.0).to(tl.float32)
    if ADDS:
        r += tl.load(y_ptr + start + at, mask=real, other=0.0).to(tl.float32)
        rounded = r.to(r_ptr.dtype.element_ty)
        tl.store(r_ptr + start + at, rounded, mask=real)
        r = rounded.to(tl.float32)
    normed, _ = _normed(r, wide, D, EPS, CENTRED)
    n = normed * tl.load(scale_ptr + group * D + channel, mask=wide, other=0.0)
    if BIAS:
        n += tl.load(bias_ptr + group * D + channel, mask=wide, other=0.0)
    tl.store(n_ptr + start + at, n.to(n_ptr.dtype.element_ty), mask=real)


@triton.jit
def backward_kernel(
    r_ptr, scale_ptr, dr_ptr, dn_ptr, dx_ptr, dy_ptr, sums_ptr,
    SHARED: tl.constexpr, D: tl.constexpr, EPS: tl.constexpr, CENTRED: tl.constexpr, CAST: tl.constexpr,
    BIAS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx, with CAST dy too, of ROWS tokens, and their sums for scale and bias, (groups, blocks, 1 or 2, D)."""
    blocks: tl.constexpr = (SHARED + ROWS - 1) // ROWS
    group, begin = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * ROWS
    channel = tl.arange(0, WIDTH)[None, :]
    start, wide = (group * SHARED + begin) * D, channel < D
    scale = tl.load(scale_ptr + group * D + channel, mask=wide, other=0.0)
    d_scale = tl.zeros((TILE, WIDTH), tl.float32)
    d_bias = tl.zeros((TILE, WIDTH), tl.float32)
    for step in range(ROWS // TILE):
        row = step * TILE + tl.arange(0, TILE)[:, None]
        real, at = wide & (begin + row < SHARED), row * D + channel
        r = tl.load(r_ptr + start + at, mask=real, other=0.0).to(tl.float32)
        dn = tl.load(dn_ptr + start + at, mask=real, other=0.0).to(tl.float32)
        dx = tl.load(dr_ptr + start + at, mask=real, other=0.0).to(tl.float32)
        normed, rate = _normed(r, wide, D, EPS, CENTRED)
        d_scale += dn * normed
        if BIAS:
            d_bias += dn
        g = dn * scale
        d_normed = g - normed * (tl.sum(g * normed, axis=1, keep_dims=True) / D)
        if CENTRED:
            d_normed -= tl.sum(g, axis=1, keep_dims=True) / D
        dx += d_normed * rate
        tl.store(dx_ptr + start + at, dx.to(dx_ptr.dtype.element_ty), mask=real)
        if CAST:
            tl.store(dy_ptr + start + at, dx.to(dy_ptr.dtype.element_ty), mask=real)
    place = sums_ptr + tl.program_id(0).to(tl.int64) * (1 + BIAS) * D + channel
    tl.store(place, tl.sum(d_scale, axis=0, keep_dims=True), mask=wide)
    if BIAS:
        tl.store(place + D, tl.sum(d_bias, axis=0, keep_dims=True), mask=wide)
