"""Triton kernels of short_conv: one for the outputs, one for all gradients.

s is the gated input, c the convolution with its bias, and `age` the number of tokens that a token sees before itself.
The forward kernel computes a tile of tokens and channels; it reads w shifted tiles, which caches hold. The backward
kernel walks through its tokens: it keeps the last w values of s, and for w tokens the part of the gradient of s that is
known. So every input is read once from memory, apart from w - 1 tokens on either side of a block.
"""

import triton
import triton.language as tl

FORWARD_TILE = (32, 128)
"""Tokens and channels of a forward program of `FORWARD_WARPS` warps."""
FORWARD_WARPS = 8
BLOCK = 64
"""Tokens of a backward program of one warp."""


@triton.jit
def _signal(
    x_ptr, gate_ptr, history_ptr, token, channel, seen, offsets,
    T: tl.constexpr, D: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, HISTORY: tl.constexpr, OFFSETS: tl.constexpr,
):  # fmt: skip
    """s in float32, 0 where not `seen`; pointers begin at the row, and tokens before 0 are of the history."""
    at, real = token * D + channel, seen & (token >= 0) & (token < T)
    s = tl.load(x_ptr + at, mask=real, other=0.0).to(tl.float32) + offsets[0]
    if IN:
        s *= tl.load(gate_ptr + at, mask=real, other=0.0).to(tl.float32) + offsets[2]
    if OFFSETS:
        s = tl.where(real, s, 0.0)
    if HISTORY:
        before = seen & (token < 0) & (token > -W)
        s += tl.load(history_ptr + at + (W - 1) * D, mask=before, other=0.0).to(tl.float32)
    return s


@triton.jit
def _offsets(ptr, channel, wide, D: tl.constexpr, OFFSETS: tl.constexpr):
    """Offsets of x, output and input gate."""
    found = (0.0, 0.0, 0.0)
    if OFFSETS:
        found = (
            tl.load(ptr + channel, mask=wide, other=0.0),
            tl.load(ptr + D + channel, mask=wide, other=0.0),
            tl.load(ptr + 2 * D + channel, mask=wide, other=0.0),
        )
    return found


@triton.jit
def forward_kernel(
    x_ptr, taps_ptr, bias_ptr, in_ptr, out_ptr, history_ptr, age_ptr, offsets_ptr, y_ptr,
    T: tl.constexpr, D: tl.constexpr, W: tl.constexpr, SHARED: tl.constexpr, N_PLAIN: tl.constexpr,
    BIAS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, HISTORY: tl.constexpr, PACKED: tl.constexpr,
    OFFSETS: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """y of a tile; SHARED rows have the same taps."""
    blocks: tl.constexpr = (T + TOKENS - 1) // TOKENS
    row = (tl.program_id(0) // blocks).to(tl.int64)
    token = (tl.program_id(0) % blocks) * TOKENS + tl.arange(0, TOKENS)[:, None]
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    start, group, wide = row * T * D, row // SHARED, channel < D
    history = history_ptr + row * (W - 1) * D
    real = wide & (token < T)
    offsets = _offsets(offsets_ptr + group * 3 * D, channel, wide, D, OFFSETS)
    if PACKED:
        age = tl.load(age_ptr + row * T + token, mask=token < T, other=0)
    c = tl.zeros((TOKENS, CHANNELS), tl.float32)
    if BIAS:
        c += tl.load(bias_ptr + group * D + channel, mask=wide, other=0.0)
    for a in tl.static_range(W):
        seen = real
        if PACKED:
            seen = real & (age >= a)
        tap = tl.load(taps_ptr + (group * W + a) * D + channel, mask=wide, other=0.0)
        c += tap * _signal(
            x_ptr + start, in_ptr + start, history, token - a, channel, seen, offsets, T, D, W, IN, HISTORY, OFFSETS
        )
    if N_PLAIN < D:
        c = tl.where(channel < N_PLAIN, c, c * tl.sigmoid(c))
    if OUT:
        c *= tl.load(out_ptr + start + token * D + channel, mask=real, other=0.0).to(tl.float32) + offsets[1]
    tl.store(y_ptr + start + token * D + channel, c.to(y_ptr.dtype.element_ty), mask=real)


@triton.jit
def _pushed(first, window, W: tl.constexpr):
    """The entries of the window after `first`, without the last one."""
    found = (first,)
    for a in tl.static_range(W - 1):
        found += (window[a],)
    return found


@triton.jit
def backward_kernel(
    x_ptr, taps_ptr, bias_ptr, in_ptr, out_ptr, history_ptr, age_ptr, offsets_ptr, dy_ptr,
    dx_ptr, d_in_ptr, d_out_ptr, sums_ptr,
    T: tl.constexpr, D: tl.constexpr, W: tl.constexpr, SHARED: tl.constexpr, N_PLAIN: tl.constexpr,
    BIAS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, HISTORY: tl.constexpr, PACKED: tl.constexpr,
    OFFSETS: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Gradients of x and the gates for a block of tokens, and its sums for taps, bias and, if there are any, offsets,
    (rows, blocks, w + 1 or w + 4, d)."""
    blocks: tl.constexpr = (T + TOKENS - 1) // TOKENS
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin, start, group, wide = block * TOKENS, row * T * D, row // SHARED, channel < D
    end = tl.minimum(begin + TOKENS, T)
    history = history_ptr + row * (W - 1) * D
    zero = tl.zeros((CHANNELS,), tl.float32)
    window = (zero,)
    pending = (zero,)
    sums = (zero,)
    taps = (tl.load(taps_ptr + group * W * D + channel, mask=wide, other=0.0),)
    for a in tl.static_range(1, W):
        window += (zero,)
        pending += (zero,)
        sums += (zero,)
        taps += (tl.load(taps_ptr + (group * W + a) * D + channel, mask=wide, other=0.0),)
    offsets = _offsets(offsets_ptr + group * 3 * D, channel, wide, D, OFFSETS)
    bias, bias_sum, x_sum, out_sum, in_sum = zero, zero, zero, zero, zero
    if BIAS:
        bias = tl.load(bias_ptr + group * D + channel, mask=wide, other=0.0)

    for step in range(TOKENS + 2 * W - 2):
        i = begin + step - (W - 1)
        now = _signal(x_ptr + start, in_ptr + start, history, i, channel, wide, offsets, T, D, W, IN, HISTORY, OFFSETS)
        window = _pushed(now, window, W)
        later = (i >= begin) & (i < T)
        own, at = (i >= begin) & (i < end), start + i * D + channel
        age = tl.full((1,), W, tl.int32)
        if PACKED:
            age = tl.load(age_ptr + row * T + i + tl.arange(0, 1), mask=later, other=0)
        c = bias
        for a in tl.static_range(W):
            c += tl.where(age >= a, taps[a] * window[a], 0.0)
        dc = tl.load(dy_ptr + at, mask=wide & later, other=0.0).to(tl.float32)
        rate = tl.where(channel < N_PLAIN, 1.0, tl.sigmoid(c))
        if OUT:
            gate = tl.load(out_ptr + at, mask=wide & later, other=0.0).to(tl.float32) + offsets[1]
            d_out = dc * c * rate
            tl.store(d_out_ptr + at, d_out.to(d_out_ptr.dtype.element_ty), mask=wide & own)
            out_sum += tl.where(own, d_out, 0.0)
            dc *= gate
        dc *= tl.where(channel < N_PLAIN, 1.0, rate * (1.0 + c * (1.0 - rate)))
        mine = tl.where(own, dc, 0.0)
        bias_sum += mine

        pending = _pushed(zero, pending, W)
        parts, totals = (pending[0] + taps[0] * dc,), (sums[0] + mine * window[0],)
        for a in tl.static_range(1, W):
            parts += (pending[a] + tl.where(age >= a, taps[a] * dc, 0.0),)
            totals += (sums[a] + tl.where(age >= a, mine * window[a], 0.0),)
        pending, sums = parts, totals
        j = i - (W - 1)
        done, at = wide & (j >= begin) & (j < end), start + j * D + channel
        ds = pending[W - 1]
        if IN:
            x = tl.load(x_ptr + at, mask=done, other=0.0).to(tl.float32) + offsets[0]
            tl.store(d_in_ptr + at, (ds * x).to(d_in_ptr.dtype.element_ty), mask=done)
            in_sum += tl.where(done, ds * x, 0.0)
            ds *= tl.load(in_ptr + at, mask=done, other=0.0).to(tl.float32) + offsets[2]
        x_sum += tl.where(done, ds, 0.0)
        tl.store(dx_ptr + at, ds.to(dx_ptr.dtype.element_ty), mask=done)

    place = sums_ptr + (row * blocks + block) * (W + 1 + 3 * OFFSETS) * D + channel
    for a in tl.static_range(W):
        tl.store(place + a * D, sums[a], mask=wide)
    tl.store(place + W * D, bias_sum, mask=wide)
    if OFFSETS:
        tl.store(place + (W + 1) * D, x_sum, mask=wide)
        tl.store(place + (W + 2) * D, out_sum, mask=wide)
        tl.store(place + (W + 3) * D, in_sum, mask=wide)
