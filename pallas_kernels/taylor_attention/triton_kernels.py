"""Taylor attention in Triton: one kernel for the forward pass, for both gradients, and for states.

A program scans the chunks of one segment of one row (batch and head), for a block of values, with the state in
registers. Tokens read the sums over other tokens, earlier or (reverse) later ones. With x the reading vector, o the
others, p = 1 + x.o + (x.o)^2 / 2, ~ a value with one more entry for the normalizer, and D = decay:

    S~     = sum_o D^distance phi(o) o~^T,    phi = [1, o_a, o_a o_b for all a, b]
    read   = sum_o D^distance p o~            = [1, x_a, x_a x_b / 2] S~
    pull_b = sum_o D^distance (1 + x.o) (x~.o~) o_b = (S~ x~)_b + sum_a x_a (S~ x~)_ab

    pass           x        x~               o        o~               computes
    forward        q scale  -                k        [v, 1]           read: y, den
    dq             q scale  [dnum, dden]     k        [v, 1]           pull: dq / scale
    dk, dv         k        [v, 1]           q scale  [dnum, dden]     read: dv, pull: dk; reverse
    states         -        -                either   either           S~ of each segment from zeros

S~ of the reverse pass is the cotangent of the state, doubled on products a b. Operands of matrix products have the
dtype of the inputs; sums, states and weights are float32. Products of order 2 are in pieces of A * K features, so that
the operands of a matrix product fit into registers.
"""

import triton
import triton.language as tl

MAX_KEY_DIM = 16
CHUNK = 16
WARPS = 8
FACTORS = 2
"""Vector entries a of a piece of products a b."""


@triton.jit
def _pairs(part, x, C: tl.constexpr, N: tl.constexpr):
    """part_a x_b: (C, A), (C, K) -> (C, A K)."""
    return tl.reshape(part[:, :, None] * x[:, None, :], (C, N))


@triton.jit
def _part(ptr, place, heads, head, token_mask, a, KD: tl.constexpr):
    """Entries `a` of the vectors of tokens."""
    at = ptr + (place * heads + head)[:, None] * KD + a
    return tl.load(at, mask=token_mask[:, None] & (a < KD), other=0.0).to(tl.float32)


@triton.jit
def taylor_kernel(
    q_ptr, k_ptr, v_ptr, dnum_ptr, dden_ptr, log_decay_ptr, s_ptr, z_ptr, y_ptr, den_ptr, dx_ptr, s_out_ptr, z_out_ptr,
    T: tl.constexpr, L: tl.constexpr, B: tl.constexpr, H: tl.constexpr, G: tl.constexpr, KD: tl.constexpr,
    VD: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, A: tl.constexpr, SCALE: tl.constexpr,
    EPS: tl.constexpr, REVERSE: tl.constexpr, READ: tl.constexpr, PULL: tl.constexpr, NORMALIZE: tl.constexpr,
    DECAY: tl.constexpr, STATE_IN: tl.constexpr, STATE_OUT: tl.constexpr,
):  # fmt: skip
    """KD <= K and VD: widths of keys and values; V: values of the program; L: tokens of a segment."""
    row, block, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, h = row // H, row % H
    shared = h // (H // G)
    P: tl.constexpr = K // A
    F: tl.constexpr = 1 + KD + KD * KD
    SEGMENTS: tl.constexpr = (T + L - 1) // L
    ALONE: tl.constexpr = not (READ or PULL)
    c, d, w = tl.arange(0, C), tl.arange(0, K), block * V + tl.arange(0, V)
    a, e = tl.arange(0, A), tl.arange(0, A * K)
    real_d, real_w = d < KD, w < VD
    first_block = (block == 0).to(tl.float32)

    # Indices of the features of order 1 and 2 in a state.
    first = 1 + d
    second = 1 + KD + (e // K) * KD + e % K
    s_row = (row.to(tl.int64) * SEGMENTS + segment) * F
    s0, s1 = tl.zeros((V,), tl.float32), tl.zeros((K, V), tl.float32)
    z0, z1 = tl.zeros((1,), tl.float32), tl.zeros((K,), tl.float32)
    s2 = ()
    z2 = ()
    for p in tl.static_range(P):
        real_e = (e // K + p * A < KD) & (e % K < KD)
        f = s_row + second + p * A * KD
        if STATE_IN:
            s2 += (tl.load(s_ptr + f[:, None] * VD + w, mask=real_e[:, None] & real_w, other=0.0),)
            z2 += (tl.load(z_ptr + f, mask=real_e, other=0.0),)
        else:
            s2 += (tl.zeros((A * K, V), tl.float32),)
            z2 += (tl.zeros((A * K,), tl.float32),)
    if STATE_IN:
        s0 = tl.load(s_ptr + s_row * VD + w, mask=real_w, other=0.0)
        s1 = tl.load(s_ptr + (s_row + first)[:, None] * VD + w, mask=real_d[:, None] & real_w, other=0.0)
        z0 = tl.load(z_ptr + s_row + tl.arange(0, 1))
        z1 = tl.load(z_ptr + s_row + first, mask=real_d, other=0.0)
    log_decay = 0.0
    if DECAY:
        log_decay = tl.load(log_decay_ptr + row)

    begin = segment * L
    end = tl.minimum(begin + L, T)
    for step in range(L // C):
        start = begin + step * C
        if REVERSE:
            start = begin + (L // C - 1 - step) * C
        token = start + c
        real = token < end
        place = b.to(tl.int64) * T + token
        n = tl.minimum(tl.maximum(end - start, 0), C)
        # Factors of decay between a token and the states at the two ends of the chunk.
        after_start, to_end = tl.zeros((C,), tl.float32) + 1.0, tl.zeros((C,), tl.float32) + 1.0
        if DECAY:
            after_start = tl.exp2(log_decay * (c + 1).to(tl.float32))
            to_end = tl.exp2(log_decay * tl.where(real, n - 1 - c, 0).to(tl.float32))

        k_at = k_ptr + (place * G + shared)[:, None] * KD + d
        v_at = v_ptr + (place * G + shared)[:, None] * VD + w
        mask_d, mask_w = real[:, None] & real_d, real[:, None] & real_w
        k, v = tl.load(k_at, mask=mask_d, other=0.0), tl.load(v_at, mask=mask_w, other=0.0)
        dtype: tl.constexpr = k.dtype
        ones = tl.where(real, 1.0, 0.0)
        if READ or PULL or REVERSE:
            q = tl.load(q_ptr + (place * H + h)[:, None] * KD + d, mask=mask_d, other=0.0)
        if PULL or REVERSE:
            dnum = tl.load(dnum_ptr + (place * H + h)[:, None] * VD + w, mask=mask_w, other=0.0)
            dden = tl.load(dden_ptr + row.to(tl.int64) * T + token, mask=real, other=0.0)
        if REVERSE:
            others, other_values, other_ones, other_scale = q, dnum, dden, SCALE
            to_read, to_write = to_end, after_start
        else:
            others, other_values, other_ones, other_scale = k, v, ones, 1.0
            to_read, to_write = after_start, to_end

        if READ or PULL:
            if REVERSE:
                x, x_scale = k, 1.0
                met = (c[:, None] <= c) & real
            else:
                x, x_scale = q, SCALE
                met = (c[:, None] >= c) & real
            x32 = x.to(tl.float32) * x_scale
            scores = tl.dot(x, tl.trans(others)) * SCALE
            kept = tl.where(met, 1.0, 0.0)
            if DECAY:
                kept *= tl.exp2(log_decay * tl.where(met, tl.abs(c[:, None] - c), 0).to(tl.float32))
        if READ:
            weights = (1.0 + scores + 0.5 * scores * scores) * kept
            past = tl.dot(x32.to(dtype), s1.to(dtype)) + s0[None, :]
            past_den = z0 + tl.sum(x32 * z1[None, :], 1)
        if PULL:
            if REVERSE:
                x_values, x_ones, extra = v, ones, (dden * first_block)[None, :]
            else:
                x_values, x_ones, extra = dnum, dden, (dden * first_block)[:, None]
            x_ones *= first_block
            slopes = (tl.dot(x_values, tl.trans(other_values)) + extra) * (1.0 + scores) * kept
            pulled = tl.dot(x_values, tl.trans(s1.to(dtype))) + x_ones[:, None] * z1[None, :]
        if READ or PULL:
            for p in tl.static_range(P):
                if REVERSE:
                    part = _part(k_ptr, place, G, shared, real, p * A + a, KD)
                else:
                    part = _part(q_ptr, place, H, h, real, p * A + a, KD) * SCALE
                s2_p = s2[p].to(dtype)
                if READ:
                    products = 0.5 * _pairs(part, x32, C, A * K)
                    past = tl.dot(products.to(dtype), s2_p, past)
                    if NORMALIZE:
                        past_den += tl.sum(products * z2[p][None, :], 1)
                if PULL:
                    u = tl.dot(x_values, tl.trans(s2_p)) + x_ones[:, None] * z2[p][None, :]
                    pulled += tl.sum(part[:, :, None] * tl.reshape(u, (C, A, K)), 1)
        if READ:
            num = tl.dot(weights.to(dtype), other_values) + to_read[:, None] * past
            if NORMALIZE:
                den = tl.sum(weights, 1) + to_read * past_den + EPS
                num = num / den[:, None]
                if block == 0:
                    tl.store(den_ptr + row.to(tl.int64) * T + token, den, mask=real)
            tl.store(y_ptr + (place * H + h)[:, None] * VD + w, num.to(y_ptr.dtype.element_ty), mask=mask_w)
        if PULL:
            dx = tl.dot(slopes.to(dtype), others) * other_scale + to_read[:, None] * pulled
            dx_at = dx_ptr + ((block.to(tl.int64) * B * T + place) * H + h)[:, None] * KD + d
            tl.store(dx_at, dx * x_scale, mask=mask_d)

        to_write = tl.where(real, to_write, 0.0)
        o32 = others.to(tl.float32) * other_scale
        written = o32 * to_write[:, None]
        one = other_ones * to_write
        whole = 1.0
        if DECAY:
            whole = tl.exp2(log_decay * n.to(tl.float32))
            s0, s1, z0, z1 = s0 * whole, s1 * whole, z0 * whole, z1 * whole
        s0 += tl.sum(other_values.to(tl.float32) * to_write[:, None], 0)
        s1 += tl.dot(tl.trans(written.to(dtype)), other_values)
        z0 += tl.sum(one, 0)
        z1 += tl.sum(o32 * one[:, None], 0)
        new_s = ()
        new_z = ()
        for p in tl.static_range(P):
            if REVERSE:
                part = _part(q_ptr, place, H, h, real, p * A + a, KD) * SCALE
            else:
                part = _part(k_ptr, place, G, shared, real, p * A + a, KD)
            products = _pairs(part, o32, C, A * K)
            s2_p, z2_p = s2[p], z2[p]
            if DECAY:
                s2_p, z2_p = s2_p * whole, z2_p * whole
            new_s += (tl.dot(tl.trans((products * to_write[:, None]).to(dtype)), other_values, s2_p),)
            new_z += (z2_p + tl.sum(products * one[:, None], 0),)
        s2 = new_s
        z2 = new_z

    o_row, here = row.to(tl.int64) * F, segment == SEGMENTS - 1
    if REVERSE:
        here = segment == 0
    if ALONE:
        o_row, here = s_row, segment >= 0
    if STATE_OUT:
        first_z = here & (block == 0)
        mask_w = here & real_w
        tl.store(s_out_ptr + o_row * VD + w, s0, mask=mask_w)
        tl.store(s_out_ptr + (o_row + first)[:, None] * VD + w, s1, mask=real_d[:, None] & mask_w)
        tl.store(z_out_ptr + o_row + tl.arange(0, 1), z0, mask=first_z)
        tl.store(z_out_ptr + o_row + first, z1, mask=real_d & first_z)
        for p in tl.static_range(P):
            real_e = (e // K + p * A < KD) & (e % K < KD)
            f = o_row + second + p * A * KD
            tl.store(s_out_ptr + f[:, None] * VD + w, s2[p], mask=real_e[:, None] & mask_w)
            tl.store(z_out_ptr + f, z2[p], mask=real_e & first_z)
