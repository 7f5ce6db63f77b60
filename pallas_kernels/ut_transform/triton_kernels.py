"""The UT transform in Triton: scores of chunks of 64 tokens (no decay, decay per token), and inverses of scores.

One program per chunk. Scores and inverse are two kernels, because one would need more registers than there are. The
inverse works in blocks of 16 x 16: the blocks D_a of the diagonal of I + A are inverted by substitution, the blocks
below follow as T_ab = -D_a sum_{b <= c < a} A_ac T_cb. The backward pass reads T:

    dA = -T^T (dmix Diag(beta)) T^T          dbeta_j = sum_i T_ij dmix_ij + sum_i dA_ji S_ji          dS = Diag(beta) dA

where S are the scores. Sums of log decays between two tokens are sums of these decays, never differences of sums.
"""

import triton
import triton.language as tl

from pallas_kernels.triton_rows import product


@triton.jit
def _first(at, H: tl.constexpr):
    """The first token of a chunk, in arrays (b, t, H)."""
    return (at // H) * 64 * H + at % H


@triton.jit
def _between(decay):
    """Decays from token j to token i of a chunk, (64, 64); 1 for j >= i."""
    i = tl.arange(0, 64)
    return tl.exp(tl.cumsum(tl.where(i[:, None] > i[None, :], decay[:, None], 0.0), 0))


@triton.jit
def _since(decay):
    """Decays from the start of a chunk to each token, inclusive, (64, 1)."""
    i = tl.arange(0, 64)
    return tl.exp(tl.sum(tl.where(i[:, None] <= i[None, :], decay[:, None], 0.0), 0))[:, None]


@triton.jit
def _until(decay):
    """Decays from after each token to the end of a chunk, (64, 1)."""
    i = tl.arange(0, 64)
    return tl.exp(tl.sum(tl.where(i[:, None] > i[None, :], decay[:, None], 0.0), 0))[:, None]


@triton.jit
def scores_kernel(
    x_ptr, decay_ptr, scores_ptr, read_ptr, write_ptr, keep_ptr, H: tl.constexpr, K: tl.constexpr, DECAY: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """Decayed scores in the blocks that `inverse_kernel` reads; if TOKENS read, with decays write and keep."""
    at = tl.program_id(0).to(tl.int64)
    i, d = tl.arange(0, 64), tl.arange(0, K)
    first, wide = _first(at, H), i[:, None] * H * K + d[None, :]
    keys = tl.load(x_ptr + first * K + wide)
    scores = product(keys, tl.trans(keys))
    if DECAY:
        decay = tl.load(decay_ptr + first + i * H)
        scores *= _between(decay)
    square = i[:, None] * 64 + i[None, :]
    tl.store(scores_ptr + at * 4096 + square, scores, mask=(i[:, None] // 16 >= i[None, :] // 16))
    if TOKENS:
        wide_keys = keys.to(tl.float32)
        if DECAY:
            tl.store(write_ptr + first * K + wide, (wide_keys * _until(decay)).to(keys.dtype))
            tl.store(keep_ptr + at * K + d, tl.zeros((K,), tl.float32) + tl.exp(tl.sum(decay, 0)))
            wide_keys *= _since(decay)
        tl.store(read_ptr + first * K + wide, (-wide_keys).to(keys.dtype))


@triton.jit
def _system(x_ptr, beta_ptr, at, H: tl.constexpr, BETA: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    """Block (A, B) of the strictly lower triangle of Diag(beta) S."""
    i = tl.arange(0, 16)
    found = tl.load(x_ptr + at * 4096 + (A * 16 + i[:, None]) * 64 + B * 16 + i[None, :]).to(tl.float32)
    if BETA:
        found *= tl.load(beta_ptr + _first(at, H) + (A * 16 + i) * H)[:, None]
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
        block *= tl.load(beta_ptr + _first(at, H) + (B * 16 + i) * H)[None, :]
    place = (A * 16 + i[:, None]) * 64 + B * 16 + i[None, :]
    tl.store(mix_ptr + at * 4096 + place, block.to(mix_ptr.dtype.element_ty))


@triton.jit
def inverse_kernel(x_ptr, beta_ptr, mix_ptr, H: tl.constexpr, BETA: tl.constexpr, SCALE: tl.constexpr):
    """mix of scores x, or T if not SCALE."""
    at = tl.program_id(0).to(tl.int64)
    diagonal = ()
    for a in tl.static_range(4):
        diagonal += (_unit_inverse(_system(x_ptr, beta_ptr, at, H, BETA, a, a)),)
    found = ()
    for a in tl.static_range(4):
        system = ()
        for c in tl.static_range(a):
            system += (_system(x_ptr, beta_ptr, at, H, BETA, a, c),)
        for b in tl.static_range(a):
            total = product(system[b], diagonal[b])
            for c in tl.static_range(b + 1, a):
                total += product(system[c], found[c * (c + 1) // 2 + b])
            found += (-product(diagonal[a], total),)
        found += (diagonal[a],)

    for a in tl.static_range(4):
        for b in tl.static_range(a + 1):
            _store(mix_ptr, beta_ptr, found[a * (a + 1) // 2 + b], at, H, SCALE, a, b)
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
    first, token = _first(at, H), i * H
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
            between = _between(decay)
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
            dread *= _since(decay)
            dsince = -tl.sum(dread * keys.to(tl.float32), 1)
            ddecay += tl.sum(tl.where(i[:, None] >= i[None, :], dsince[:, None], 0.0), 0)
        dx -= dread
        dwrite = tl.load(dwrite_ptr + first * K + wide).to(tl.float32)
        if DECAY:
            dwrite *= _until(decay)
            duntil = tl.sum(dwrite * keys.to(tl.float32), 1)
            ddecay += tl.sum(tl.where(i[:, None] < i[None, :], duntil[:, None], 0.0), 0)
            dkeep = tl.sum(tl.load(dkeep_ptr + at * K + tl.arange(0, K)), 0)
            tl.store(ddecay_ptr + first + token, ddecay + tl.exp(tl.sum(decay, 0)) * dkeep)
        tl.store(dx_ptr + first * K + wide, (dx + dwrite).to(dx_ptr.dtype.element_ty))
