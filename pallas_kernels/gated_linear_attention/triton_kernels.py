"""Triton kernels of gated linear attention: states of all chunks, outputs, gradients, and one decode step.

With a_i the sum of log decays from the start of a chunk of C tokens, inclusive, S before and dS after the chunk,

    S  <- exp(a_C) S + (exp(a_C - a) K)^T V                        `state_kernel`, chunk by chunk
    dS <- exp(a_C) dS + (exp(a) Q)^T dY                            the same kernel in reverse
    Y  = P V + (exp(a) Q) S                                        `output_kernel`, all chunks at once
    dV = P^T dY + (exp(a_C - a) K) dS                              the same kernel in reverse
    P_ij = sum_k Q_ik K_jk exp(a_ik - a_jk), j <= i                dQ, dK and decays: `gradient_kernel`

a_i - a_j and a_C - a_j are sums of the log decays between two tokens, not differences. With decays per channel the
highest binary digit in which i and j differ puts them into the two halves of a block (a level), and its middle splits
the sum (README.md). Products have operands in the dtype of the inputs and accumulate in float32; float32
operands are three products of tf32.
"""

import triton
import triton.language as tl

from pallas_kernels.triton_rows import LOG2E, product


@triton.jit
def load_tokens(
    x_ptr, first, column, T: tl.constexpr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
    N: tl.constexpr, LATER: tl.constexpr = 0,
):  # fmt: skip
    """N columns of a chunk, 0 outside the array. LATER=1: of the next token each, 0 for the chunk's last."""
    c, d = tl.arange(0, C), column + tl.arange(0, N)
    inside = (c + LATER < tl.minimum(T - first, C))[:, None] & (d < WIDTH)
    at = x_ptr + first.to(tl.int64) * STRIDE + (c[:, None] + LATER) * STRIDE + d
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def store_tokens(
    x_ptr, x, first, column, T: tl.constexpr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    c, d = tl.arange(0, C), column + tl.arange(0, N)
    inside = (c < T - first)[:, None] & (d < WIDTH)
    at = x_ptr + first.to(tl.int64) * STRIDE + c[:, None] * STRIDE + d
    tl.store(at, x.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def of_row(x_ptr, row, T: tl.constexpr, H: tl.constexpr, G: tl.constexpr, WIDTH: tl.constexpr):
    """The first token of a row's sequence in an array (b, T, G, WIDTH), with G heads for H."""
    return x_ptr + ((row // H).to(tl.int64) * T * G + (row % H) // (H // G)) * WIDTH


@triton.jit
def state_block(x_ptr, i, j, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):
    """Pointers to a block of a state (K, V), and whether they are inside."""
    k, v = i + tl.arange(0, BK), j + tl.arange(0, BV)
    return x_ptr + k[:, None] * V + v, (k[:, None] >= 0) & (v < V)


@triton.jit
def running_sum(x, C: tl.constexpr, N: tl.constexpr, REVERSE: tl.constexpr = False):
    """Sums of x (C, N) up to each row, inclusive, or from it to the end; Triton scans no arrays of width 1."""
    flat = tl.reshape(x, (C,)) if N == 1 else x
    sums = tl.cumsum(flat, 0, reverse=REVERSE)
    return sums[:, None] if N == 1 else sums


@triton.jit
def decay_sums(
    decay_ptr, first, column, T: tl.constexpr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Sums of base-2 log decays of a chunk: up to each token, inclusive; after each token; of all tokens."""
    own = load_tokens(decay_ptr, first, column, T, STRIDE, WIDTH, C, N) * LOG2E
    later = load_tokens(decay_ptr, first, column, T, STRIDE, WIDTH, C, N, 1) * LOG2E
    return running_sum(own, C, N), running_sum(later, C, N, True), tl.sum(own, 0)


@triton.jit
def decays_between(decay, C: tl.constexpr):
    """exp of the sums of decays (C, 1) after token j up to token i >= j, else 0: (C, C)."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return tl.where(i >= j, tl.exp2(tl.cumsum(tl.where(i > j, decay * LOG2E, 0.0), 0)), 0.0)


@triton.jit
def level(q, k, before, after, L, C: tl.constexpr):
    """Queries of second halves, keys of first halves, decayed to the middle of their blocks, and the decays."""
    late = (tl.arange(0, C)[:, None] & L) != 0
    factor = tl.exp2(tl.where(late, before, after))
    return (tl.where(late, q, k).to(tl.float32) * factor).to(q.dtype), factor, late


@triton.jit
def level_pairs(L, C: tl.constexpr):
    """Whether tokens i, j are in different halves of the same 2 L tokens."""
    between = tl.arange(0, C)[:, None] ^ tl.arange(0, C)[None, :]
    return (between >= L) & (between < 2 * L)


@triton.jit
def next_level(before, after, whole, late, L, C: tl.constexpr, N: tl.constexpr):
    """Sums within blocks of 2 L tokens from those within L: up to each token, after it, and of the block."""
    sibling = tl.zeros((C, N), tl.int32) + (tl.arange(0, C)[:, None] ^ L)
    other = tl.gather(whole, sibling, 0)
    return before + tl.where(late, other, 0.0), after + tl.where(late, 0.0, other), whole + other


@triton.jit
def channel_scores(q, k, decay, C: tl.constexpr, LEVELS: tl.constexpr, N: tl.constexpr):
    """P of N channels. A loop over levels at run time keeps their masks out of registers."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    scores = tl.where(i == j, tl.sum(q.to(tl.float32) * k.to(tl.float32), 1)[:, None], 0.0)
    before, after, whole = decay * LOG2E, tl.zeros((C, N), tl.float32), decay * LOG2E
    for m in range(LEVELS):
        x, _, late = level(q, k, before, after, 1 << m, C)
        scores += tl.where(level_pairs(1 << m, C) & (i > j), product(x, tl.trans(x)), 0.0)
        before, after, whole = next_level(before, after, whole, late, 1 << m, C, N)
    return scores


@triton.jit
def state_kernel(
    keys_ptr, values_ptr, decay_ptr, start_ptr, states_ptr, last_ptr,
    T: tl.constexpr, H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, REVERSE: tl.constexpr, STATE_IN: tl.constexpr,
    STATE_OUT: tl.constexpr,
):  # fmt: skip
    """States (b h, n, K, V) before every chunk, in reverse their cotangents after it, and the last one (b h, K, V).

    In reverse keys are the queries and values dY. A program scans a block of the state.
    """
    row, i, j = tl.program_id(0), tl.program_id(1) * BK, tl.program_id(2) * BV
    W: tl.constexpr = K if CHANNEL else 1
    N: tl.constexpr = BK if CHANNEL else 1
    n: tl.constexpr = (T + C - 1) // C
    keys_ptr, values_ptr = of_row(keys_ptr, row, T, H, G, K), of_row(values_ptr, row, T, H, H, V)
    decay_ptr = of_row(decay_ptr, row, T, H, H, W)
    place = row.to(tl.int64) * K * V
    state = tl.zeros((BK, BV), tl.float32)
    if STATE_IN:
        start, within = state_block(start_ptr + place, i, j, V, BK, BV)
        state = tl.load(start, mask=within, other=0.0)
    for step in range(n):
        chunk = n - 1 - step if REVERSE else step
        at, inside = state_block(states_ptr + place * n + chunk.to(tl.int64) * K * V, i, j, V, BK, BV)
        tl.store(at, state.to(states_ptr.dtype.element_ty), mask=inside)
        first = chunk * C
        before, after, whole = decay_sums(decay_ptr, first, i if CHANNEL else 0, T, H * W, W, C, N)
        keys = load_tokens(keys_ptr, first, i, T, G * K, K, C, BK)
        values = load_tokens(values_ptr, first, j, T, H * V, V, C, BV)
        weighted = (keys.to(tl.float32) * tl.exp2(before if REVERSE else after)).to(keys.dtype)
        state = state * tl.exp2(whole)[:, None] + product(tl.trans(weighted), values)
    if STATE_OUT:
        last, within = state_block(last_ptr + place, i, j, V, BK, BV)
        tl.store(last, state, mask=within)


@triton.jit
def output_kernel(
    q_ptr, k_ptr, v_ptr, decay_ptr, states_ptr, y_ptr,
    T: tl.constexpr, H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr,
    LEVELS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Y of a chunk and head; in reverse dV, from dY in place of v and the cotangents after chunks."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    first = chunk * C
    W: tl.constexpr = K if CHANNEL else 1
    N: tl.constexpr = BK if CHANNEL else 1
    n: tl.constexpr = (T + C - 1) // C
    q_ptr, k_ptr = of_row(q_ptr, row, T, H, G, K), of_row(k_ptr, row, T, H, G, K)
    v_ptr, y_ptr = of_row(v_ptr, row, T, H, H, V), of_row(y_ptr, row, T, H, H, V)
    decay_ptr = of_row(decay_ptr, row, T, H, H, W)
    states_ptr += (row.to(tl.int64) * n + chunk) * K * V

    scores = tl.zeros((C, C), tl.float32)
    for i in range(0, K, BK):
        q, k = load_tokens(q_ptr, first, i, T, G * K, K, C, BK), load_tokens(k_ptr, first, i, T, G * K, K, C, BK)
        if CHANNEL:
            scores += channel_scores(q, k, load_tokens(decay_ptr, first, i, T, H * W, W, C, N), C, LEVELS, N)
        else:
            scores += product(q, tl.trans(k))
    if not CHANNEL:
        scores *= decays_between(load_tokens(decay_ptr, first, 0, T, H, 1, C, 1), C)
    if REVERSE:
        scores = tl.trans(scores)
    weights = scores.to(v_ptr.dtype.element_ty)

    for j in range(0, V, BV):
        y = product(weights, load_tokens(v_ptr, first, j, T, H * V, V, C, BV))
        for i in range(0, K, BK):
            x = load_tokens(k_ptr if REVERSE else q_ptr, first, i, T, G * K, K, C, BK)
            before, after, _ = decay_sums(decay_ptr, first, i if CHANNEL else 0, T, H * W, W, C, N)
            at, inside = state_block(states_ptr, i, j, V, BK, BV)
            weighted = (x.to(tl.float32) * tl.exp2(after if REVERSE else before)).to(x.dtype)
            y += product(weighted, tl.load(at, mask=inside, other=0.0))
        store_tokens(y_ptr, y, first, j, T, H * V, V, C, BV)


@triton.jit
def step_kernel(
    q_ptr, k_ptr, v_ptr, decay_ptr, start_ptr, y_ptr, last_ptr,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr,
    STATE_IN: tl.constexpr, STATE_OUT: tl.constexpr,
):  # fmt: skip
    """y and the state after one token, of a head and BV values; reads and writes the state once."""
    row, j = tl.program_id(0), tl.program_id(1) * BV
    W: tl.constexpr = K if CHANNEL else 1
    d, w = tl.arange(0, K), j + tl.arange(0, BV)
    keys = row // (H // G) * K + d
    q, k = tl.load(q_ptr + keys).to(tl.float32), tl.load(k_ptr + keys).to(tl.float32)
    v = tl.load(v_ptr + row * V + w, mask=w < V, other=0.0).to(tl.float32)
    state = k[:, None] * v[None, :]
    place = row.to(tl.int64) * K * V
    if STATE_IN:
        decay = tl.load(decay_ptr + row * W + tl.arange(0, W)) * LOG2E
        at, inside = state_block(start_ptr + place, 0, j, V, K, BV)
        state += tl.exp2(decay)[:, None] * tl.load(at, mask=inside, other=0.0)
    tl.store(y_ptr + row * V + w, tl.sum(q[:, None] * state, 0).to(y_ptr.dtype.element_ty), mask=w < V)
    if STATE_OUT:
        at, inside = state_block(last_ptr + place, 0, j, V, K, BV)
        tl.store(at, state, mask=inside)


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
        pairs += product(dy, tl.trans(v))
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
                found = product(tl.where(level_pairs(1 << m, C), pairs, 0.0), x)
                slope += tl.where(late, found, -found) * x.to(tl.float32)
                found *= factor
                dq, dk = dq + tl.where(late, found, 0.0), dk + tl.where(late, 0.0, found)
                before, after, whole = next_level(before, after, whole, late, 1 << m, C, N)
        else:
            dq = product(pairs, k)
            dk = product(tl.trans(pairs), q)
            slope = q32 * dq - k32 * dk
            before, after, whole = decay_sums(decay_ptr, first, 0, T, H, 1, C, 1)
            whole = whole[None, :]

        past_q, past_k = tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32)
        both = tl.zeros((BK,), tl.float32)
        for j in range(0, V, BV):
            at, inside = state_block(states_ptr + place, i, j, V, BK, BV)
            state = tl.load(at, mask=inside, other=0.0)
            at, inside = state_block(dstates_ptr + place, i, j, V, BK, BV)
            dstate = tl.load(at, mask=inside, other=0.0)
            v, dy = load_tokens(v_ptr, first, j, T, H * V, V, C, BV), load_tokens(dy_ptr, first, j, T, H * V, V, C, BV)
            past_q += product(dy, tl.trans(state))
            past_k += product(v, tl.trans(dstate))
            both += tl.sum(state.to(tl.float32) * dstate.to(tl.float32), 1)
        past_q, past_k = past_q * tl.exp2(before), past_k * tl.exp2(after)
        store_tokens(dq_ptr, dq + past_q + same * k32, first, i, T, H * K, K, C, BK)
        store_tokens(dk_ptr, dk + past_k + same * q32, first, i, T, H * K, K, C, BK)
        slope, written, both = slope + q32 * past_q, k32 * past_k, both[None, :] * tl.exp2(whole)
        if CHANNEL:
            ddecay = running_sum(slope, C, N, True) + running_sum(written, C, N) - written + both
            store_tokens(ddecay_ptr, ddecay, first, i, T, H * W, W, C, N)
        else:
            later += tl.sum(slope, 1)[:, None]
            earlier += tl.sum(written, 1)[:, None]
            around += tl.sum(both, 1)
    if not CHANNEL:
        ddecay = running_sum(later, C, 1, True) + running_sum(earlier, C, 1) - earlier + around
        store_tokens(ddecay_ptr, ddecay, first, 0, T, H, 1, C, 1)
