"""Triton kernel of gated linear attention: gradients of queries, keys and decays, all chunks at once."""

import triton
import triton.language as tl

from pallas_kernels.gated_linear_attention.triton_kernels import (
    EXACT,
    LOG2E,
    decay_sums,
    decays_between,
    level,
    level_pairs,
    load_tokens,
    next_level,
    of_row,
    running_sum,
    state_block,
    store_tokens,
)


@triton.jit
def gradient_kernel(
    q_ptr, k_ptr, v_ptr, dy_ptr, decay_ptr, states_ptr, dstates_ptr, dq_ptr, dk_ptr, ddecay_ptr,
    T: tl.constexpr, H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr,
    LEVELS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """dQ, dK (b, T, H, K) and the gradient of the decays, of a chunk and head; B_ij = dY_i.V_j below the diagonal.

    The gradient of the log decay of token t sums the cotangents of all pairs j < t <= i. Within the chunk it is the sum
    over i >= t of q_i.dq_i - k_i.dk_i; pairs after t cancel up to the rounding of float32, as both are sums of the
    same products.
    """
    row, chunk = tl.program_id(0), tl.program_id(1)
    first = chunk * C
    W: tl.constexpr = K if CHANNEL else 1
    N: tl.constexpr = BK if CHANNEL else 1
    n: tl.constexpr = (T + C - 1) // C
    q_ptr, k_ptr = of_row(q_ptr, row, T, H, G, K), of_row(k_ptr, row, T, H, G, K)
    dq_ptr, dk_ptr = of_row(dq_ptr, row, T, H, H, K), of_row(dk_ptr, row, T, H, H, K)
    v_ptr, dy_ptr = of_row(v_ptr, row, T, H, H, V), of_row(dy_ptr, row, T, H, H, V)
    decay_ptr, ddecay_ptr = of_row(decay_ptr, row, T, H, H, W), of_row(ddecay_ptr, row, T, H, H, W)
    place = (row.to(tl.int64) * n + chunk) * K * V
    r, c = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]

    pairs = tl.zeros((C, C), tl.float32)
    for j in range(0, V, BV):
        v, dy = load_tokens(v_ptr, first, j, T, H * V, V, C, BV), load_tokens(dy_ptr, first, j, T, H * V, V, C, BV)
        pairs += tl.dot(dy, tl.trans(v), input_precision=EXACT)
    same = tl.sum(tl.where(r == c, pairs, 0.0), 1)[:, None]
    if CHANNEL:
        pairs = tl.where(r > c, pairs, tl.trans(pairs))
    else:
        pairs = tl.where(r > c, pairs * decays_between(load_tokens(decay_ptr, first, 0, T, H, 1, C, 1), C), 0.0)
    pairs = pairs.to(v_ptr.dtype.element_ty)

    later, earlier, around = tl.zeros((C, 1), tl.float32), tl.zeros((C, 1), tl.float32), tl.zeros((1,), tl.float32)
    for i in range(0, K, BK):
        q, k = load_tokens(q_ptr, first, i, T, G * K, K, C, BK), load_tokens(k_ptr, first, i, T, G * K, K, C, BK)
        q32, k32 = q.to(tl.float32), k.to(tl.float32)
        if CHANNEL:
            dq, dk, slope = tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32)
            decay = load_tokens(decay_ptr, first, i, T, H * W, W, C, N) * LOG2E
            before, after, whole = decay, tl.zeros((C, N), tl.float32), decay
            for m in range(LEVELS):
                x, factor, late = level(q, k, before, after, 1 << m, C)
                found = tl.dot(tl.where(level_pairs(1 << m, C), pairs, 0.0), x, input_precision=EXACT)
                slope += tl.where(late, found, -found) * x.to(tl.float32)
                found *= factor
                dq, dk = dq + tl.where(late, found, 0.0), dk + tl.where(late, 0.0, found)
                before, after, whole = next_level(before, after, whole, late, 1 << m, C, N)
        else:
            dq = tl.dot(pairs, k, input_precision=EXACT)
            dk = tl.dot(tl.trans(pairs), q, input_precision=EXACT)
            slope = q32 * dq - k32 * dk
            before, after, whole = decay_sums(decay_ptr, first, 0, T, H, 1, C, 1)
            whole = whole[None, :]

        past_q, past_k = tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32)
        product = tl.zeros((BK,), tl.float32)
        for j in range(0, V, BV):
            at, inside = state_block(states_ptr + place, i, j, V, BK, BV)
            state = tl.load(at, mask=inside, other=0.0)
            at, inside = state_block(dstates_ptr + place, i, j, V, BK, BV)
            dstate = tl.load(at, mask=inside, other=0.0)
            v, dy = load_tokens(v_ptr, first, j, T, H * V, V, C, BV), load_tokens(dy_ptr, first, j, T, H * V, V, C, BV)
            past_q += tl.dot(dy, tl.trans(state), input_precision=EXACT)
            past_k += tl.dot(v, tl.trans(dstate), input_precision=EXACT)
            product += tl.sum(state.to(tl.float32) * dstate.to(tl.float32), 1)
        past_q, past_k = past_q * tl.exp2(before), past_k * tl.exp2(after)
        store_tokens(dq_ptr, dq + past_q + same * k32, first, i, T, H * K, K, C, BK)
        store_tokens(dk_ptr, dk + past_k + same * q32, first, i, T, H * K, K, C, BK)
        slope, written, product = slope + q32 * past_q, k32 * past_k, product[None, :] * tl.exp2(whole)
        if CHANNEL:
            ddecay = running_sum(slope, C, N, True) + running_sum(written, C, N) - written + product
            store_tokens(ddecay_ptr, ddecay, first, i, T, H * W, W, C, N)
        else:
            later += tl.sum(slope, 1)[:, None]
            earlier += tl.sum(written, 1)[:, None]
            around += tl.sum(product, 1)
    if not CHANNEL:
        ddecay = running_sum(later, C, 1, True) + running_sum(earlier, C, 1) - earlier + around
        store_tokens(ddecay_ptr, ddecay, first, 0, T, H, 1, C, 1)
