"""Scores of keys with decays per channel in Triton, and their gradients; one program per 16 tokens of a chunk.

Between blocks of 16 tokens, decays are factors of both tokens, from and to the border before the later block. Within a
block, factors of all pairs are products that grow token by token. Sums over tokens are products with triangles of ones.
"""

import triton
import triton.language as tl

from pallas_kernels.triton_rows import product


@triton.jit
def _sums(x, AFTER: tl.constexpr, OWN: tl.constexpr):
    """Sums over the tokens before each one, or AFTER it, OWN: including it, of (16, K)."""
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    met = i < j if AFTER else i > j
    if OWN:
        met = i <= j if AFTER else i >= j
    return product(tl.where(met, 1.0, 0.0), x)


@triton.jit
def _offsets(H: tl.constexpr, K: tl.constexpr):
    """Places of 16 tokens after the first one."""
    return tl.arange(0, 16)[:, None] * H * K + tl.arange(0, K)[None, :]


@triton.jit
def _block(x_ptr, at, block, H: tl.constexpr, K: tl.constexpr):
    """Block of a chunk, (16, K) float32."""
    first = ((at // H) * 64 + block * 16) * H + at % H
    return tl.load(x_ptr + first * K + _offsets(H, K)).to(tl.float32)


@triton.jit
def _sum(decay_ptr, at, first, end, H: tl.constexpr, K: tl.constexpr):
    """Sum of log decays of blocks first to end - 1, (K,)."""
    found = tl.zeros((K,), tl.float32)
    for block in range(4):  # the interpreter takes no bounds from `program_id`
        if (block >= first) & (block < end):
            found += tl.sum(_block(decay_ptr, at, block, H, K), 0)
    return found


@triton.jit
def _earlier(decay_ptr, at, block, border, H: tl.constexpr, K: tl.constexpr):
    """Decays from tokens of a block to the border before block `border`, which is later, (16, K)."""
    until = _sums(_block(decay_ptr, at, block, H, K), AFTER=True, OWN=False)
    return tl.exp(until + _sum(decay_ptr, at, block + 1, border, H, K)[None, :])


@triton.jit
def _row(x_ptr, at, token, H: tl.constexpr, K: tl.constexpr):
    """One token of a chunk, (1, K) float32."""
    place = ((at // H) * 64 + token) * H + at % H
    return tl.load(x_ptr + place * K + tl.arange(0, K)[None, :]).to(tl.float32)


@triton.jit
def scores_kernel(
    x_ptr, decay_ptr, scores_ptr, read_ptr, write_ptr, keep_ptr, H: tl.constexpr, K: tl.constexpr, TOKENS: tl.constexpr
):
    """Float32 scores, 0 on the diagonal and above; if TOKENS read, write and keep."""
    at, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i, d = tl.arange(0, 16), tl.arange(0, K)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    place = scores_ptr + (at * 64 + block * 16) * 64 + i[:, None] * 64 + i[None, :]
    key, decay = _block(x_ptr, at, block, H, K), _block(decay_ptr, at, block, H, K)
    since = _sums(decay, AFTER=False, OWN=True)
    rows = (key * tl.exp(since)).to(dtype)
    for other in range(4):
        if other < block:
            columns = _block(x_ptr, at, other, H, K) * _earlier(decay_ptr, at, other, block, H, K)
            tl.store(place + other * 16, product(rows, tl.trans(columns.to(dtype))))
        if other > block:
            tl.store(place + other * 16, tl.zeros((16, 16), tl.float32))

    # Keys of the block, decayed up to token `now`; transposed scores.
    kept, near = tl.zeros((16, K), tl.float32), tl.zeros((16, 16), tl.float32)
    for now in range(16):
        row = _row(x_ptr, at, block * 16 + now, H, K)
        kept *= tl.exp(_row(decay_ptr, at, block * 16 + now, H, K))
        near = tl.where(i[None, :] == now, tl.sum(kept * row, 1)[:, None], near)
        kept = tl.where(i[:, None] == now, row, kept)
    tl.store(place + block * 16, tl.trans(near))

    if TOKENS:
        wide = (((at // H) * 64 + block * 16) * H + at % H) * K + _offsets(H, K)
        sums = since + _sum(decay_ptr, at, 0, block, H, K)[None, :]
        tl.store(read_ptr + wide, (-key * tl.exp(sums)).to(dtype))
        tl.store(write_ptr + wide, (key * _earlier(decay_ptr, at, block, 4, H, K)).to(dtype))
        if block == 0:
            tl.store(keep_ptr + at * K + d, tl.exp(_sum(decay_ptr, at, 0, 4, H, K)))


@triton.jit
def _across(x_ptr, decay_ptr, dscores_ptr, at, later, earlier, H: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr):
    """Gradients from scores of two blocks: of the keys of one (ROWS: of the later), and these times the keys."""
    i = tl.arange(0, 16)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    first = (at * 64 + later * 16) * 64 + earlier * 16
    weights = tl.load(dscores_ptr + first + i[:, None] * 64 + i[None, :]).to(dtype)
    key, other = _block(x_ptr, at, later, H, K), _block(x_ptr, at, earlier, H, K)
    to_later = tl.exp(_sums(_block(decay_ptr, at, later, H, K), AFTER=False, OWN=True))
    to_border = _earlier(decay_ptr, at, earlier, later, H, K)
    if ROWS:
        found = to_later * product(weights, (other * to_border).to(dtype))
    else:
        found, key = to_border * product(tl.trans(weights), (key * to_later).to(dtype)), other
    return found, found * key


@triton.jit
def _near(x_ptr, decay_ptr, dscores_ptr, at, block, H: tl.constexpr, K: tl.constexpr):
    """Gradients of keys and log decays from scores within a block."""
    i = tl.arange(0, 16)
    key = _block(x_ptr, at, block, H, K)
    kept, dkey, ddecay = tl.zeros((16, K), tl.float32), tl.zeros((16, K), tl.float32), tl.zeros((16, K), tl.float32)
    for now in range(16):
        place = at * 64 + block * 16 + now
        weights = tl.load(dscores_ptr + place * 64 + block * 16 + i)
        row = _row(x_ptr, at, block * 16 + now, H, K)
        kept *= tl.exp(_row(decay_ptr, at, block * 16 + now, H, K))
        terms = weights[:, None] * kept
        dkey += terms * row + tl.where(i[:, None] == now, tl.sum(terms * key, 0)[None, :], 0.0)
        ddecay += tl.where(i[:, None] <= now, _sums(terms * key * row, AFTER=False, OWN=False), 0.0)
        kept = tl.where(i[:, None] == now, 1.0, kept)
    return dkey, ddecay


@triton.jit
def scores_vjp_kernel(
    x_ptr, decay_ptr, dscores_ptr, dread_ptr, dwrite_ptr, dkeep_ptr, dkeys_ptr, dx_ptr, ddecay_ptr, H: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and log decays; dscores float32, 0 on the diagonal and above."""
    at, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, K)
    dx, ddecay = _near(x_ptr, decay_ptr, dscores_ptr, at, block, H, K)
    dx += _block(dkeys_ptr, at, block, H, K)
    through = tl.load(dkeep_ptr + at * K + d) * tl.exp(_sum(decay_ptr, at, 0, 4, H, K))
    dsince, duntil = tl.zeros((16, K), tl.float32), tl.zeros((16, K), tl.float32)
    for other in range(4):
        if other < block:
            found, terms = _across(x_ptr, decay_ptr, dscores_ptr, at, block, other, H, K, True)
            dx, dsince = dx + found, dsince + terms
            for later in range(4):
                if later > block:
                    terms = _across(x_ptr, decay_ptr, dscores_ptr, at, later, other, H, K, False)[1]
                    through += tl.sum(terms, 0)
        if other > block:
            found, terms = _across(x_ptr, decay_ptr, dscores_ptr, at, other, block, H, K, False)
            dx, duntil = dx + found, duntil + terms
        # read and write
        key = _block(x_ptr, at, other, H, K)
        if other >= block:
            sums = (
                _sums(_block(decay_ptr, at, other, H, K), AFTER=False, OWN=True)
                + _sum(decay_ptr, at, 0, other, H, K)[None, :]
            )
            found = -tl.exp(sums) * _block(dread_ptr, at, other, H, K)
            if other == block:
                dx, dsince = dx + found, dsince + found * key
            else:
                through += tl.sum(found * key, 0)
        if other <= block:
            found = _earlier(decay_ptr, at, other, 4, H, K) * _block(dwrite_ptr, at, other, H, K)
            if other == block:
                dx, duntil = dx + found, duntil + found * key
            else:
                through += tl.sum(found * key, 0)
    ddecay += _sums(dsince, AFTER=True, OWN=True) + _sums(duntil, AFTER=False, OWN=False) + through[None, :]

    wide = (((at // H) * 64 + block * 16) * H + at % H) * K + _offsets(H, K)
    tl.store(dx_ptr + wide, dx.to(dx_ptr.dtype.element_ty))
    tl.store(ddecay_ptr + wide, ddecay)
