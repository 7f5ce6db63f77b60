"""The UT transform in Triton: inverses of chunks of 64 tokens, from keys (no decay, decay per token) or from scores.

One program per chunk. The forward pass works in blocks of 16 x 16: the blocks D_a of the diagonal of I + A are inverted
by substitution, the blocks below follow as T_ab = -D_a sum_{b <= c < a} A_ac T_cb. The backward pass reads T:

    dA = -T^T (dmix Diag(beta)) T^T          dbeta_j = sum_i T_ij dmix_ij + sum_i dA_ji S_ji          dS = Diag(beta) dA

where S are the scores. Sums of log decays between two tokens are sums of these decays, never differences of sums.
"""

import triton
import triton.language as tl


@triton.jit
def product(x, y):
    """Matrix product that accumulates in float32; operands of float32 are sums of two numbers of tf32."""
    return tl.dot(x, y, input_precision="tf32x3")


@triton.jit
def _decays_between(decay_ptr, at, H: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    """Decays from tokens of block B to tokens of block A, (16, 16); 1 above the diagonal."""
    i = tl.arange(0, 16)
    decay_ptr += (at // H) * 64 * H + at % H
    row = tl.load(decay_ptr + (A * 16 + i) * H)
    if A == B:
        sums = tl.cumsum(tl.where(i[:, None] > i[None, :], row[:, None], 0.0), 0)
    else:
        after = tl.load(decay_ptr + (B * 16 + i) * H)
        since = tl.sum(tl.where(i[:, None] <= i[None, :], row[:, None], 0.0), 0)
        until = tl.sum(tl.where(i[:, None] > i[None, :], after[:, None], 0.0), 0)
        for middle in tl.static_range(B + 1, A):
            since += tl.sum(tl.load(decay_ptr + (middle * 16 + i) * H), 0)
        sums = since[:, None] + until[None, :]
    return tl.exp(sums)


@triton.jit
def _system(
    x_ptr, beta_ptr, decay_ptr, at, H: tl.constexpr, K: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Block (A, B) of the strictly lower triangle of Diag(beta) S; K = 0: x are scores."""
    i = tl.arange(0, 16)
    first = (at // H) * 64 * H + at % H
    if K == 0:
        found = tl.load(x_ptr + at * 4096 + (A * 16 + i[:, None]) * 64 + B * 16 + i[None, :]).to(tl.float32)
    else:
        rows = tl.load(x_ptr + first * K + (A * 16 + i[:, None]) * H * K + tl.arange(0, K)[None, :])
        columns = tl.load(x_ptr + first * K + (B * 16 + i[:, None]) * H * K + tl.arange(0, K)[None, :])
        found = product(rows, tl.trans(columns))
    if DECAY:
        found *= _decays_between(decay_ptr, at, H, A, B)
    if BETA:
        found *= tl.load(beta_ptr + first + (A * 16 + i) * H)[:, None]
    return tl.where(i[:, None] > i[None, :], found, 0.0) if A == B else found


@triton.jit
def _unit_inverse(strict):
    """(I + strict)^-1 of a strictly lower (16, 16) matrix."""
    i = tl.arange(0, 16)
    found = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for row in range(1, 16):
        factors = tl.sum(tl.where(i[:, None] == row, strict, 0.0), 0)
        new = tl.where(i == row, 1.0, 0.0) - tl.sum(factors[:, None] * found, 0)
        found = tl.where(i[:, None] == row, new[None, :], found)
    return found


@triton.jit
def _store(mix_ptr, beta_ptr, block, at, H: tl.constexpr, SCALE: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    """Stores block (A, B), with columns times beta if SCALE."""
    i = tl.arange(0, 16)
    if SCALE:
        block *= tl.load(beta_ptr + (at // H) * 64 * H + at % H + (B * 16 + i) * H)[None, :]
    place = (A * 16 + i[:, None]) * 64 + B * 16 + i[None, :]
    tl.store(mix_ptr + at * 4096 + place, block.to(mix_ptr.dtype.element_ty))


@triton.jit
def _tokens(x_ptr, decay_ptr, read_ptr, write_ptr, keep_ptr, at, H: tl.constexpr, K: tl.constexpr, DECAY: tl.constexpr):
    """Stores read, and with decays write and keep."""
    m, i, d = tl.arange(0, 64), tl.arange(0, 16), tl.arange(0, K)
    first = (at // H) * 64 * H + at % H
    decay = tl.load(decay_ptr + first + m * H) if DECAY else m.to(tl.float32)
    for block in tl.static_range(4):
        token = block * 16 + i
        offset = token[:, None] * H * K + d[None, :]
        key = tl.load(x_ptr + first * K + offset).to(tl.float32)
        if DECAY:
            since = tl.sum(tl.where(m[:, None] <= token[None, :], decay[:, None], 0.0), 0)
            until = tl.sum(tl.where(m[:, None] > token[None, :], decay[:, None], 0.0), 0)
            tl.store(write_ptr + first * K + offset, (key * tl.exp(until)[:, None]).to(write_ptr.dtype.element_ty))
            key *= tl.exp(since)[:, None]
        tl.store(read_ptr + first * K + offset, (-key).to(read_ptr.dtype.element_ty))
    if DECAY:
        tl.store(keep_ptr + at * K + d, tl.zeros((K,), tl.float32) + tl.exp(tl.sum(decay, 0)))


@triton.jit
def inverse_kernel(
    x_ptr, beta_ptr, decay_ptr, mix_ptr, read_ptr, write_ptr, keep_ptr, H: tl.constexpr, K: tl.constexpr,
    BETA: tl.constexpr, DECAY: tl.constexpr, SCALE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """mix, or T if not SCALE; if TOKENS read, and with decays write and keep."""
    at = tl.program_id(0).to(tl.int64)
    if TOKENS:
        _tokens(x_ptr, decay_ptr, read_ptr, write_ptr, keep_ptr, at, H, K, DECAY)
    t00 = _unit_inverse(_system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 0, 0))
    t11 = _unit_inverse(_system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 1, 1))
    t22 = _unit_inverse(_system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 2, 2))
    t33 = _unit_inverse(_system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 3, 3))
    a10 = _system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 1, 0)
    a21 = _system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 2, 1)
    a32 = _system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 3, 2)
    t10 = -product(t11, product(a10, t00))
    t21 = -product(t22, product(a21, t11))
    t32 = -product(t33, product(a32, t22))
    a20 = _system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 2, 0)
    a31 = _system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 3, 1)
    t20 = -product(t22, product(a20, t00) + product(a21, t10))
    t31 = -product(t33, product(a31, t11) + product(a32, t21))
    a30 = _system(x_ptr, beta_ptr, decay_ptr, at, H, K, BETA, DECAY, 3, 0)
    t30 = -product(t33, product(a30, t00) + product(a31, t10) + product(a32, t20))

    _store(mix_ptr, beta_ptr, t00, at, H, SCALE, 0, 0)
    _store(mix_ptr, beta_ptr, t11, at, H, SCALE, 1, 1)
    _store(mix_ptr, beta_ptr, t22, at, H, SCALE, 2, 2)
    _store(mix_ptr, beta_ptr, t33, at, H, SCALE, 3, 3)
    _store(mix_ptr, beta_ptr, t10, at, H, SCALE, 1, 0)
    _store(mix_ptr, beta_ptr, t20, at, H, SCALE, 2, 0)
    _store(mix_ptr, beta_ptr, t30, at, H, SCALE, 3, 0)
    _store(mix_ptr, beta_ptr, t21, at, H, SCALE, 2, 1)
    _store(mix_ptr, beta_ptr, t31, at, H, SCALE, 3, 1)
    _store(mix_ptr, beta_ptr, t32, at, H, SCALE, 3, 2)
    for row in tl.static_range(3):
        for column in tl.static_range(row + 1, 4):
            _store(mix_ptr, beta_ptr, tl.zeros((16, 16), tl.float32), at, H, False, row, column)


@triton.jit
def inverse_vjp_kernel(
    x_ptr, beta_ptr, decay_ptr, found_ptr, dmix_ptr, dread_ptr, dwrite_ptr, dkeep_ptr, dkeys_ptr, dx_ptr, dbeta_ptr,
    ddecay_ptr, H: tl.constexpr, K: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """Gradients of keys or scores, beta and decays; found: T."""
    at = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, 64)
    # Offsets of a chunk are 32-bit numbers: 64-bit ones need many registers.
    first, token = (at // H) * 64 * H + at % H, i * H
    square = i[:, None] * 64 + i[None, :]
    lower = i[:, None] > i[None, :]
    found = tl.load(found_ptr + at * 4096 + square)
    dmix = tl.load(dmix_ptr + at * 4096 + square).to(tl.float32)
    dtype: tl.constexpr = found.dtype
    beta = tl.load(beta_ptr + first + token) if BETA else tl.full((64,), 1.0, tl.float32)
    half = product(tl.trans(found), (dmix * beta[None, :]).to(dtype))
    dbeta = tl.sum(found.to(tl.float32) * dmix, 0)
    dsystem = tl.where(lower, -product(half.to(dtype), tl.trans(found)), 0.0)

    if K == 0:
        if BETA:
            scores = tl.where(lower, tl.load(x_ptr + at * 4096 + square).to(tl.float32), 0.0)
            tl.store(dbeta_ptr + first + token, dbeta + tl.sum(dsystem * scores, 1))
        tl.store(dx_ptr + at * 4096 + square, (dsystem * beta[:, None]).to(dx_ptr.dtype.element_ty))
    else:
        wide = token[:, None] * K + tl.arange(0, K)[None, :]
        keys = tl.load(x_ptr + first * K + wide)
        scores = product(keys, tl.trans(keys))
        if DECAY:
            decay = tl.load(decay_ptr + first + token)
            between = tl.exp(tl.cumsum(tl.where(lower, decay[:, None], 0.0), 0))
            scores *= between
        if BETA:
            tl.store(dbeta_ptr + first + token, dbeta + tl.sum(dsystem * scores, 1))
        weights = dsystem * beta[:, None]
        if DECAY:
            # Row m: sums over tokens i >= m; of these, columns j < m have m between them and i.
            ddecay = tl.sum(tl.where(lower, tl.cumsum(weights * scores, 0, reverse=True), 0.0), 1)
            weights *= between
        both = weights.to(dtype)
        dx = product(both, keys) + product(tl.trans(both), keys)
        dx += tl.load(dkeys_ptr + first * K + wide).to(tl.float32)
        dread = tl.load(dread_ptr + first * K + wide).to(tl.float32)
        if DECAY:
            dread *= tl.exp(tl.sum(tl.where(i[:, None] <= i[None, :], decay[:, None], 0.0), 0))[:, None]
            dsince = -tl.sum(dread * keys.to(tl.float32), 1)
            ddecay += tl.sum(tl.where(i[:, None] >= i[None, :], dsince[:, None], 0.0), 0)
        dx -= dread
        dwrite = tl.load(dwrite_ptr + first * K + wide).to(tl.float32)
        if DECAY:
            dwrite *= tl.exp(tl.sum(tl.where(lower, decay[:, None], 0.0), 0))[:, None]
            duntil = tl.sum(dwrite * keys.to(tl.float32), 1)
            ddecay += tl.sum(tl.where(i[:, None] < i[None, :], duntil[:, None], 0.0), 0)
            dkeep = tl.sum(tl.load(dkeep_ptr + at * K + tl.arange(0, K)), 0)
            tl.store(ddecay_ptr + first + token, ddecay + tl.exp(tl.sum(decay, 0)) * dkeep)
        tl.store(dx_ptr + first * K + wide, (dx + dwrite).to(dx_ptr.dtype.element_ty))
