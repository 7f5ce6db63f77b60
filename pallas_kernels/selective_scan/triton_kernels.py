"""Triton kernels of the selective scan: a program scans 32 channels of a row, its states in registers.

A tile of states is (R, 8, 4, W): warp w has channels 8 w to 8 w + 7, a thread R = n / 4 numbers of the state of one
channel, adjacent in memory. Triton gives the axes of a tile to registers, lanes and warps in the order of their places
in memory, then of the shape; another order of the axes costs barriers per token. A sum over a state is R - 1 additions
and 2 shuffles, a sum over channels 3 shuffles and an exchange between warps. A decay is one base-2 exponential.

The forward kernel reads x, delta, b, c once and saves the state before every `BLOCK` tokens. The backward kernel takes
these blocks in reverse: it computes the states of a block again and keeps them in registers, but not the decays.
"""

# ruff: noqa: RUF005 (Triton has no starred expressions)

import triton
import triton.language as tl

from pallas_kernels.triton_rows import LOG2E, load_keep, load_rows, with_tail

PART: tl.constexpr = tl.constexpr(4)
"""Tokens whose inputs are in registers at once."""


@triton.jit
def _places(D: tl.constexpr, N: tl.constexpr, R: tl.constexpr, W: tl.constexpr):
    """Channels (8, W) of this program, numbers of state (R, 4), and places of states (R, 8, 4, W) in an array (d, n);
    for each, which ones exist."""
    channel = tl.program_id(0) * (8 * W) + tl.arange(0, W)[None, :] * 8 + tl.arange(0, 8)[:, None]
    number = tl.arange(0, 4)[None, :] * R + tl.arange(0, R)[:, None]
    place = channel[None, :, None, :] * N + number[:, None, :, None]
    # Masks that are known to be true cost no instructions.
    real_channel, real_number = tl.full((8, W), True, tl.int1), tl.full((R, 4), True, tl.int1)
    if D % (8 * W):
        real_channel = channel < D
    if N < 4 * R:
        real_number = number < N
    real = real_channel[None, :, None, :] & real_number[:, None, :, None]
    return channel, real_channel, number, real_number, place, real


@triton.jit
def _decay(delta, rate, keep, DOCUMENTS: tl.constexpr):
    """exp(delta a), 0 at the first token of a document."""
    kept = tl.exp2(delta[None, :, None, :] * rate)
    if DOCUMENTS:
        kept *= keep
    return kept


@triton.jit
def _write(h, kept, x, delta, b):
    """The state after a token."""
    return kept * h + (delta * x)[None, :, None, :] * b[:, None, :, None]


@triton.jit
def _store(ptr, channel, x, real, W: tl.constexpr):
    """Stores x (8, W) by the first of the four lanes that have it, without a change of layout."""
    lane = tl.arange(0, 4)[None, None, :, None] + tl.zeros((1, 8, 4, W), tl.int32)
    value = tl.broadcast_to(x.to(ptr.dtype.element_ty)[None, :, None, :], (1, 8, 4, W))
    tl.store(ptr + channel[None, :, None, :] + 0 * lane, value, mask=real[None, :, None, :] & (lane == 0))


@triton.jit
def _together(parts):
    """Four tiles as one, with two more axes for the place in the tuple: modulo 2, and its half."""
    return tl.join(tl.join(parts[0], parts[1]), tl.join(parts[2], parts[3]))


@triton.jit
def forward_kernel(
    x_ptr, delta_ptr, a_ptr, b_ptr, c_ptr, keep_ptr, start_ptr, y_ptr, last_ptr, border_ptr,
    T: tl.constexpr, D: tl.constexpr, N: tl.constexpr, R: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr,
    DOCUMENTS: tl.constexpr, STATE_IN: tl.constexpr, STATE_OUT: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """y (b, t, d); the last state (b, d, n); states (b, blocks, d, n) before every `BLOCK` tokens."""
    row = tl.program_id(1).to(tl.int64)
    blocks: tl.constexpr = (T + BLOCK - 1) // BLOCK
    ragged: tl.constexpr = T % BLOCK > 0
    channel, real_channel, number, real_number, place, real = _places(D, N, R, W)
    rate = tl.load(a_ptr + row * D * N + place, mask=real, other=0.0) * LOG2E
    h = tl.zeros((R, 8, 4, W), tl.float32)
    if STATE_IN:
        h = tl.load(start_ptr + row * D * N + place, mask=real, other=0.0)
    x_ptr, delta_ptr, y_ptr = x_ptr + row * T * D, delta_ptr + row * T * D, y_ptr + row * T * D
    b_ptr, c_ptr, keep_ptr = b_ptr + row * T * N, c_ptr + row * T * N, keep_ptr + row * T

    for block in range(blocks):
        if SAVE:
            border = border_ptr + (row * blocks + block) * D * N + place
            tl.store(border, h.to(border_ptr.dtype.element_ty), mask=real)
        for part in tl.static_range(0, BLOCK, PART):
            first = block * BLOCK + part
            xs = load_rows(x_ptr, first, channel, real_channel, T, D, PART, ragged)
            deltas = load_rows(delta_ptr, first, channel, real_channel, T, D, PART, ragged)
            bs = load_rows(b_ptr, first, number, real_number, T, N, PART, ragged)
            cs = load_rows(c_ptr, first, number, real_number, T, N, PART, ragged)
            keeps = load_keep(keep_ptr, first, T, PART, DOCUMENTS)
            for i in tl.static_range(PART):
                h = _write(h, _decay(deltas[i], rate, keeps[i], DOCUMENTS), xs[i], deltas[i], bs[i])
                y = tl.sum(tl.sum(h * cs[i][:, None, :, None], 0), 1)
                _store(y_ptr + (first + i) * D, channel, y, with_tail(real_channel, first + i, T, ragged), W)
    if STATE_OUT:
        tl.store(last_ptr + row * D * N + place, h, mask=real)


@triton.jit
def backward_kernel(
    x_ptr, delta_ptr, a_ptr, b_ptr, c_ptr, keep_ptr, border_ptr, dy_ptr, dlast_ptr,
    dx_ptr, ddelta_ptr, da_ptr, sums_ptr, dstart_ptr,
    T: tl.constexpr, D: tl.constexpr, N: tl.constexpr, R: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr,
    DOCUMENTS: tl.constexpr, STATE_OUT: tl.constexpr,
):  # fmt: skip
    """dx, ddelta (b, t, d); da and dstart (b, d, n); db and dc of the channels of a
    program, (b, programs, 2, t, n).

    With e_t the decay of a token, h_t the states and g_t their cotangents:

        g_t = c_t dy_t + q_{t+1}    q_t = e_t g_t    w_t = q_t h_{t-1}    dx_t = delta_t sum_n b_t g_t
        da = sum_t delta_t w_t      ddelta_t = sum_n a w_t + x_t sum_n b_t g_t
        db_t = sum_d delta_t x_t g_t                 dc_t = sum_d dy_t h_t
    """
    row = tl.program_id(1).to(tl.int64)
    blocks: tl.constexpr = (T + BLOCK - 1) // BLOCK
    ragged: tl.constexpr = T % BLOCK > 0
    channel, real_channel, number, real_number, place, real = _places(D, N, R, W)
    rate = tl.load(a_ptr + row * D * N + place, mask=real, other=0.0) * LOG2E
    q, da = tl.zeros((R, 8, 4, W), tl.float32), tl.zeros((R, 8, 4, W), tl.float32)
    if STATE_OUT:
        q = tl.load(dlast_ptr + row * D * N + place, mask=real, other=0.0)
    x_ptr, delta_ptr, dy_ptr = x_ptr + row * T * D, delta_ptr + row * T * D, dy_ptr + row * T * D
    dx_ptr, ddelta_ptr = dx_ptr + row * T * D, ddelta_ptr + row * T * D
    b_ptr, c_ptr, keep_ptr = b_ptr + row * T * N, c_ptr + row * T * N, keep_ptr + row * T
    sums_ptr += (row * tl.num_programs(0) + tl.program_id(0)) * 2 * T * N

    for turn in range(blocks):
        block = blocks - 1 - turn
        border = border_ptr + (row * blocks + block) * D * N + place
        states = (tl.load(border, mask=real, other=0.0).to(tl.float32),)
        for part in tl.static_range(0, BLOCK, PART):
            first = block * BLOCK + part
            xs = load_rows(x_ptr, first, channel, real_channel, T, D, PART, ragged)
            deltas = load_rows(delta_ptr, first, channel, real_channel, T, D, PART, ragged)
            bs = load_rows(b_ptr, first, number, real_number, T, N, PART, ragged)
            keeps = load_keep(keep_ptr, first, T, PART, DOCUMENTS)
            for i in tl.static_range(PART):
                kept = _decay(deltas[i], rate, keeps[i], DOCUMENTS)
                states = states + (_write(states[part + i], kept, xs[i], deltas[i], bs[i]),)
        for back in tl.static_range(PART, BLOCK + PART, PART):
            first = block * BLOCK + BLOCK - back
            xs = load_rows(x_ptr, first, channel, real_channel, T, D, PART, ragged)
            deltas = load_rows(delta_ptr, first, channel, real_channel, T, D, PART, ragged)
            dys = load_rows(dy_ptr, first, channel, real_channel, T, D, PART, ragged)
            bs = load_rows(b_ptr, first, number, real_number, T, N, PART, ragged)
            cs = load_rows(c_ptr, first, number, real_number, T, N, PART, ragged)
            keeps = load_keep(keep_ptr, first, T, PART, DOCUMENTS)
            dbs, dcs = (), ()
            for i in tl.static_range(PART - 1, -1, -1):
                x, delta, dy = xs[i], deltas[i], dys[i]
                g = q + dy[None, :, None, :] * cs[i][:, None, :, None]
                q = g * _decay(delta, rate, keeps[i], DOCUMENTS)
                w = q * states[BLOCK - back + i]
                da += w * delta[None, :, None, :]
                by_x = tl.sum(tl.sum(g * bs[i][:, None, :, None], 0), 1)
                ddelta = tl.sum(tl.sum(w * rate, 0), 1) / LOG2E + by_x * x
                stored = with_tail(real_channel, first + i, T, ragged)
                _store(dx_ptr + (first + i) * D, channel, by_x * delta, stored, W)
                _store(ddelta_ptr + (first + i) * D, channel, ddelta, stored, W)
                dbs = (tl.sum(g * (delta * x)[None, :, None, :], 1),) + dbs
                dcs = (tl.sum(states[BLOCK - back + i + 1] * dy[None, :, None, :], 1),) + dcs
            token = first + tl.arange(0, 2)[:, None, None] + 2 * tl.arange(0, 2)[None, :, None]
            at = token * N + number[:, :, None, None, None] + tl.arange(0, 2) * (T * N)
            sums = tl.sum(tl.join(_together(dbs), _together(dcs)), 2)
            stored = with_tail(real_number[:, :, None, None, None], token, T, ragged)
            tl.store(sums_ptr + at, sums.to(sums_ptr.dtype.element_ty), mask=stored)
    tl.store(da_ptr + row * D * N + place, da, mask=real)
    tl.store(dstart_ptr + row * D * N + place, q, mask=real)
