"""Triton kernels of wkv4: a program scans 128 channels of one piece of a row, one or two channels per thread.

b d channels are too few threads for a GPU, so time is cut into pieces of `LENGTH` tokens. A first kernel computes the
sums of each piece from empty sums, and the kernel of outputs puts together those of earlier pieces; the backward pass
does the same with cotangents, from the end. `mosaic_gpu_vjp.py` has the equations. Exponents are in base 2 (`sums.py`):
the largest term of a sum has exponent `top`, and no other exponent is formed that is positive.
"""

# ruff: noqa: RUF005 (Triton has no starred expressions)

import triton
import triton.language as tl

from pallas_kernels.triton_rows import LOG2E, load_keep, load_rows, with_tail

EMPTY: tl.constexpr = tl.constexpr(-1e38)
JOINED: tl.constexpr = tl.constexpr(8)
"""Pieces whose sums are loaded at once."""


@triton.jit
def _with_term(num, den, top, exponent, value, weight):
    """Adds value and weight, times 2^exponent, to num and den: the sums, and the larger of the exponents."""
    difference = top - exponent
    small = tl.exp2(-tl.abs(difference))
    past, own = tl.where(difference >= 0, 1.0, small), tl.where(difference >= 0, small, 1.0)
    return past * num + own * value, past * den + own * weight, tl.maximum(top, exponent)


@triton.jit
def _keys(rows, first, T: tl.constexpr, COUNT: tl.constexpr, RAGGED: tl.constexpr):
    """Keys in base 2; `EMPTY` after the last token."""
    found = ()
    for i in tl.static_range(COUNT):
        key = rows[i] * LOG2E
        if RAGGED:
            key = tl.where(first + i < T, key, EMPTY)
        found = found + (key,)
    return found


@triton.jit
def _decay(w, token, T: tl.constexpr, RAGGED: tl.constexpr):
    """w; 0 after the last token."""
    if RAGGED:
        w = tl.where(token < T, w, 0.0)
    return w


@triton.jit
def _exponent(exponent, token, T: tl.constexpr, RAGGED: tl.constexpr):
    """Exponent of a cotangent's term; `EMPTY` after the last token, or if a later document has the token."""
    if RAGGED:
        exponent = tl.where(token < T, exponent, EMPTY)
    return tl.maximum(exponent, EMPTY)


@triton.jit
def _channels(D: tl.constexpr, WIDTH: tl.constexpr):
    """Channels of this program, and which ones exist."""
    channel, real = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), tl.full((WIDTH,), True, tl.int1)
    if D % WIDTH:
        real = channel < D
    return channel, real


@triton.jit
def _reset(top, keep, DOCUMENTS: tl.constexpr):
    """The exponent before a token: no sums before the first token of a document."""
    if DOCUMENTS:
        top = tl.where(keep > 0, top, EMPTY)
    return top


@triton.jit
def _joined(
    num, den, top, own_ptr, low, high, nearest, decay, channel, real, D: tl.constexpr, PIECES: tl.constexpr
):  # fmt: skip
    """Adds the sums of the pieces low, .., high - 1, which lose `decay` per piece between them and `nearest`."""
    for start in range(0, PIECES, JOINED):
        piece = start + tl.arange(0, JOINED)[:, None]
        mask = real[None, :] & (piece >= low) & (piece < high)
        at = own_ptr + piece * D + channel[None, :]
        tops = tl.load(at + 2 * PIECES * D, mask=mask, other=EMPTY)
        tops = tl.where(mask, tops - decay[None, :] * tl.abs(nearest - piece).to(tl.float32), 2 * EMPTY)
        largest = tl.max(tops, 0)
        weights = tl.exp2(tops - largest[None, :])
        nums = tl.sum(weights * tl.load(at, mask=mask, other=0.0), 0)
        dens = tl.sum(weights * tl.load(at + PIECES * D, mask=mask, other=0.0), 0)
        num, den, top = _with_term(num, den, top, largest, nums, dens)
    return num, den, top


@triton.jit
def _store_sums(ptr, place, num, den, top, channel, real, D: tl.constexpr, PLACES: tl.constexpr):
    """Writes num, den and top to a place of (3, places, d)."""
    at = ptr + place * D + channel
    tl.store(at, num, mask=real)
    tl.store(at + PLACES * D, den, mask=real)
    tl.store(at + 2 * PLACES * D, top, mask=real)


@triton.jit
def pieces_kernel(
    k_ptr, v_ptr, w_ptr, keep_ptr, own_ptr,
    T: tl.constexpr, D: tl.constexpr, LENGTH: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    DOCUMENTS: tl.constexpr,
):  # fmt: skip
    """num, den, top of every piece from empty sums, (b, 3, pieces, d); the grid leaves out the last piece."""
    row, piece = tl.program_id(2).to(tl.int64), tl.program_id(1)
    pieces: tl.constexpr = (T + LENGTH - 1) // LENGTH
    channel, real = _channels(D, WIDTH)
    k_ptr, v_ptr, keep_ptr = k_ptr + row * T * D, v_ptr + row * T * D, keep_ptr + row * T
    w = tl.load(w_ptr + row * D + channel, mask=real, other=0.0) * LOG2E
    num, den = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    top = den + EMPTY
    for chunk in range(LENGTH // CHUNK):
        first = piece * LENGTH + chunk * CHUNK
        keys = _keys(load_rows(k_ptr, first, channel, real, T, D, CHUNK, False), first, T, CHUNK, False)
        values = load_rows(v_ptr, first, channel, real, T, D, CHUNK, False)
        keeps = load_keep(keep_ptr, first, T, CHUNK, DOCUMENTS)
        for i in tl.static_range(CHUNK):
            top = _reset(top, keeps[i], DOCUMENTS)
            num, den, top = _with_term(num, den, top - w, keys[i], values[i], 1.0)
    _store_sums(own_ptr + row * 3 * pieces * D, piece, num, den, top, channel, real, D, pieces)


@triton.jit
def forward_kernel(
    k_ptr, v_ptr, w_ptr, u_ptr, keep_ptr, low_ptr, own_ptr, start_ptr, y_ptr, last_ptr, border_ptr,
    T: tl.constexpr, D: tl.constexpr, LENGTH: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    DOCUMENTS: tl.constexpr, STATE_IN: tl.constexpr, STATE_OUT: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """y (b, t, d), the last sums (b, 3, d), and mean value and logarithm of the weights before every chunk,
    (b, 2, chunks, d). low (b, pieces): the first piece that a piece sees, -1: the initial state too."""
    row, piece = tl.program_id(2).to(tl.int64), tl.program_id(1)
    pieces: tl.constexpr = (T + LENGTH - 1) // LENGTH
    chunks: tl.constexpr = (T + CHUNK - 1) // CHUNK
    ragged: tl.constexpr = T % LENGTH > 0
    channel, real = _channels(D, WIDTH)
    k_ptr, v_ptr, y_ptr, keep_ptr = k_ptr + row * T * D, v_ptr + row * T * D, y_ptr + row * T * D, keep_ptr + row * T
    w = tl.load(w_ptr + row * D + channel, mask=real, other=0.0) * LOG2E
    u = tl.load(u_ptr + row * D + channel, mask=real, other=0.0) * LOG2E
    num, den = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    top, low = den + EMPTY, -1
    if DOCUMENTS:
        low = tl.load(low_ptr + row * pieces + piece)
    if STATE_IN:
        start = start_ptr + row * 3 * D + channel
        num, den = tl.load(start, mask=real, other=0.0), tl.load(start + D, mask=real, other=0.0)
        passed = w * (piece * LENGTH).to(tl.float32)
        top = tl.load(start + 2 * D, mask=real, other=0.0) * LOG2E - passed
        top = tl.where(low < 0, top, EMPTY)
    if pieces > 1:
        own = own_ptr + row * 3 * pieces * D
        num, den, top = _joined(
            num, den, top, own, low, piece, piece - 1, w * LENGTH, channel, real, D, pieces
        )  # fmt: skip
    for step in range(LENGTH // CHUNK):
        chunk = piece * (LENGTH // CHUNK) + step
        first = chunk * CHUNK
        if SAVE:
            border, mask = border_ptr + (row * 2 * chunks + chunk) * D + channel, with_tail(real, first, T, ragged)
            some = tl.where(den > 0, den, 1.0)
            tl.store(border, tl.where(den > 0, num / some, 0.0), mask=mask)
            tl.store(border + chunks * D, tl.where(den > 0, top + tl.log2(some), EMPTY), mask=mask)
        keys = _keys(load_rows(k_ptr, first, channel, real, T, D, CHUNK, ragged), first, T, CHUNK, ragged)
        values = load_rows(v_ptr, first, channel, real, T, D, CHUNK, ragged)
        keeps = load_keep(keep_ptr, first, T, CHUNK, DOCUMENTS)
        for i in tl.static_range(CHUNK):
            top = _reset(top, keeps[i], DOCUMENTS)
            read, weight, _ = _with_term(num, den, top, keys[i] + u, values[i], 1.0)
            mask = with_tail(real, first + i, T, ragged)
            tl.store(y_ptr + (first + i) * D + channel, (read / weight).to(y_ptr.dtype.element_ty), mask=mask)
            num, den, top = _with_term(num, den, top - _decay(w, first + i, T, ragged), keys[i], values[i], 1.0)
    if STATE_OUT:  # noqa: SIM102 (static and dynamic conditions are two statements in Triton)
        if piece == pieces - 1:
            _store_sums(last_ptr + row * 3 * D, 0, num, den, top / LOG2E, channel, real, D, 1)


@triton.jit
def cotangents_kernel(
    k_ptr, v_ptr, w_ptr, u_ptr, keep_ptr, border_ptr, dy_ptr, own_ptr,
    T: tl.constexpr, D: tl.constexpr, LENGTH: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    DOCUMENTS: tl.constexpr,
):  # fmt: skip
    """What the tokens of a piece add to the cotangents before it, (b, 3, pieces, d); the grid leaves out the first."""
    row, piece = tl.program_id(2).to(tl.int64), tl.program_id(1) + 1
    pieces: tl.constexpr = (T + LENGTH - 1) // LENGTH
    chunks: tl.constexpr = (T + CHUNK - 1) // CHUNK
    ragged: tl.constexpr = T % LENGTH > 0
    channel, real = _channels(D, WIDTH)
    k_ptr, v_ptr, dy_ptr, keep_ptr = k_ptr + row * T * D, v_ptr + row * T * D, dy_ptr + row * T * D, keep_ptr + row * T
    w = tl.load(w_ptr + row * D + channel, mask=real, other=0.0) * LOG2E
    u = tl.load(u_ptr + row * D + channel, mask=real, other=0.0) * LOG2E
    border = border_ptr + (row * 2 * chunks + piece * (LENGTH // CHUNK)) * D + channel
    num, top = tl.load(border, mask=real, other=0.0), tl.load(border + chunks * D, mask=real, other=0.0)
    found_num, found_den = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    den, found_top, passed = found_den + 1.0, found_den + EMPTY, found_den
    for step in range(LENGTH // CHUNK):
        first = piece * LENGTH + step * CHUNK
        keys = _keys(load_rows(k_ptr, first, channel, real, T, D, CHUNK, ragged), first, T, CHUNK, ragged)
        values = load_rows(v_ptr, first, channel, real, T, D, CHUNK, ragged)
        dys = load_rows(dy_ptr, first, channel, real, T, D, CHUNK, ragged)
        keeps = load_keep(keep_ptr, first, T, CHUNK, DOCUMENTS)
        for i in tl.static_range(CHUNK):
            top, passed = _reset(top, keeps[i], DOCUMENTS), _reset(passed, keeps[i], DOCUMENTS)
            read, weight, scale = _with_term(num, den, top, keys[i] + u, values[i], 1.0)
            g = dys[i] / weight
            exponent = _exponent(passed - scale, first + i, T, ragged)
            found_num, found_den, found_top = _with_term(
                found_num, found_den, found_top, exponent, g, -g * read / weight
            )  # fmt: skip
            decay = _decay(w, first + i, T, ragged)
            passed = passed - decay
            num, den, top = _with_term(num, den, top - decay, keys[i], values[i], 1.0)
    own = own_ptr + row * 3 * pieces * D
    _store_sums(own, piece, found_num, found_den, found_top, channel, real, D, pieces)


@triton.jit
def gradients_kernel(
    k_ptr, v_ptr, w_ptr, u_ptr, keep_ptr, high_ptr, border_ptr, own_ptr, dy_ptr, end_ptr,
    dk_ptr, dv_ptr, dwu_ptr, start_ptr,
    T: tl.constexpr, D: tl.constexpr, LENGTH: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    DOCUMENTS: tl.constexpr, STATE_OUT: tl.constexpr,
):  # fmt: skip
    """dk, dv (b, t, d); dw and du of every piece (b, 2, pieces, d); cotangents before all tokens (b, 3, d). high (b,
    pieces): one more than the last piece that sees a piece, pieces + 1: the last state sees it too."""
    row, piece = tl.program_id(2).to(tl.int64), tl.program_id(1)
    pieces: tl.constexpr = (T + LENGTH - 1) // LENGTH
    chunks: tl.constexpr = (T + CHUNK - 1) // CHUNK
    ragged: tl.constexpr = T % LENGTH > 0
    channel, real = _channels(D, WIDTH)
    k_ptr, v_ptr, dy_ptr, keep_ptr = k_ptr + row * T * D, v_ptr + row * T * D, dy_ptr + row * T * D, keep_ptr + row * T
    dk_ptr, dv_ptr = dk_ptr + row * T * D, dv_ptr + row * T * D
    w = tl.load(w_ptr + row * D + channel, mask=real, other=0.0) * LOG2E
    u = tl.load(u_ptr + row * D + channel, mask=real, other=0.0) * LOG2E
    later_num, later_den = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    later_top, high = later_den + EMPTY, pieces + 1
    dw, du = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    if DOCUMENTS:
        high = tl.load(high_ptr + row * pieces + piece)
    if STATE_OUT:
        end = end_ptr + row * 3 * D + channel
        later_num, later_den = tl.load(end, mask=real, other=0.0), tl.load(end + D, mask=real, other=0.0)
        passed = w * tl.maximum(T - (piece + 1) * LENGTH, 0).to(tl.float32)
        later_top = tl.load(end + 2 * D, mask=real, other=0.0) * LOG2E - passed
        later_top = tl.where(high > pieces, later_top, EMPTY)
    if pieces > 1:
        later_num, later_den, later_top = _joined(
            later_num, later_den, later_top, own_ptr + row * 3 * pieces * D, piece + 1, tl.minimum(high, pieces),
            piece + 1, w * LENGTH, channel, real, D, pieces,
        )  # fmt: skip
    for turn in range(LENGTH // CHUNK):
        chunk = (piece + 1) * (LENGTH // CHUNK) - 1 - turn
        first = chunk * CHUNK
        border, mask = border_ptr + (row * 2 * chunks + chunk) * D + channel, with_tail(real, first, T, ragged)
        num, top = tl.load(border, mask=mask, other=0.0), tl.load(border + chunks * D, mask=mask, other=0.0)
        den = tl.full((WIDTH,), 1.0, tl.float32)
        keys = _keys(load_rows(k_ptr, first, channel, real, T, D, CHUNK, ragged), first, T, CHUNK, ragged)
        values = load_rows(v_ptr, first, channel, real, T, D, CHUNK, ragged)
        dys = load_rows(dy_ptr, first, channel, real, T, D, CHUNK, ragged)
        keeps = load_keep(keep_ptr, first, T, CHUNK, DOCUMENTS)
        nums, dens, tops = (), (), ()
        for i in tl.static_range(CHUNK):
            top = _reset(top, keeps[i], DOCUMENTS)
            nums, dens, tops = nums + (num,), dens + (den,), tops + (top,)
            num, den, top = _with_term(num, den, top - _decay(w, first + i, T, ragged), keys[i], values[i], 1.0)
        for i in tl.static_range(CHUNK - 1, -1, -1):
            mask = with_tail(real, first + i, T, ragged)
            read, weight, scale = _with_term(nums[i], dens[i], tops[i], keys[i] + u, values[i], 1.0)
            g, y = dys[i] / weight, read / weight
            own = tl.exp2(keys[i] + u - scale) * g
            by_bonus = own * (values[i] - y)
            written = tl.exp2(keys[i] + later_top)
            dk = by_bonus + written * (later_num * values[i] + later_den)
            dv = own + written * later_num
            at = (first + i) * D + channel
            tl.store(dk_ptr + at, dk.to(dk_ptr.dtype.element_ty), mask=mask)
            tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=mask)
            past = later_top - _decay(w, first + i, T, ragged)
            by_decay = tl.exp2(tops[i] + past) * (later_num * nums[i] + later_den * dens[i])
            dw -= tl.where(mask, by_decay, 0.0)
            du += by_bonus
            later_num, later_den, later_top = _with_term(
                later_num, later_den, past, _exponent(-scale, first + i, T, ragged), g, -g * y
            )  # fmt: skip
            later_top = _reset(later_top, keeps[i], DOCUMENTS)
    sums = dwu_ptr + (row * 2 * pieces + piece) * D + channel
    tl.store(sums, dw, mask=real)
    tl.store(sums + pieces * D, du, mask=real)
    if piece == 0:
        _store_sums(start_ptr + row * 3 * D, 0, later_num, later_den, later_top, channel, real, D, 1)
