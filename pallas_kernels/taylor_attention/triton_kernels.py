"""Taylor attention in Triton, by jax-triton: the forward pass for GPUs that have no wgmma (Ampere, Ada).

One program per row (batch and head) and block of values scans chunks of tokens with the state in registers. The state
has the full features [1, x_a, x_a x_b for all a, b], with weights (1, scale, scale^2 / 2) on the query side. With S~ =
[S, z] and n tokens in a chunk:

    [num_i, den_i] = sum_j p_ij v~_j + decay^(i+1) phi(q_i) S~
    S~ <- decay^n S~ + sum_j decay^(n-1-j) phi(k_j) v~_j^T

Matrix products have operands in the dtype of the inputs and accumulate in float32; sums of weights are float32. There
is no backward kernel: `xla.backward` reads y and den.
"""

import triton
import triton.language as tl

MAX_KEY_DIM = 16
VALUES = 32
"""Values of a program, which keeps 16 * 16 * 32 second-order numbers, 32 per thread. With twice the values or chunk,
registers spill on some of sm_80, sm_89 and sm_90."""
CHUNK = 16
WARPS = 8


@triton.jit
def _pairs(x, C: tl.constexpr, K: tl.constexpr):
    """x_a x_b: (C, K) -> (C, K K)."""
    return tl.reshape(x[:, :, None] * x[:, None, :], (C, K * K))


@triton.jit
def taylor_kernel(
    q_ptr, k_ptr, v_ptr, log_decay_ptr, s_ptr, z_ptr, y_ptr, den_ptr, s_out_ptr, z_out_ptr,
    T: tl.constexpr, H: tl.constexpr, G: tl.constexpr, KD: tl.constexpr, VD: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, C: tl.constexpr, SCALE: tl.constexpr, EPS: tl.constexpr, NORMALIZE: tl.constexpr,
    DECAY: tl.constexpr, STATE_IN: tl.constexpr, STATE_OUT: tl.constexpr,
):  # fmt: skip
    """KD <= K and VD: widths of keys and values; V: values of the program."""
    row, block = tl.program_id(0), tl.program_id(1)
    b, h = row // H, row % H
    shared = h // (H // G)
    F: tl.constexpr = 1 + KD + KD * KD
    c, d, w = tl.arange(0, C), tl.arange(0, K), block * V + tl.arange(0, V)
    e = tl.arange(0, K * K)
    real_d, real_w, real_e = d < KD, w < VD, (e // K < KD) & (e % K < KD)
    # Indices of the first- and second-order features in a state.
    first, second = 1 + d, 1 + KD + (e // K) * KD + e % K

    s0, s1, s2 = tl.zeros((V,), tl.float32), tl.zeros((K, V), tl.float32), tl.zeros((K * K, V), tl.float32)
    z0, z1, z2 = tl.zeros((1,), tl.float32), tl.zeros((K,), tl.float32), tl.zeros((K * K,), tl.float32)
    s_row, z_row = row.to(tl.int64) * F * VD, row.to(tl.int64) * F
    if STATE_IN:
        s0 = tl.load(s_ptr + s_row + w, mask=real_w, other=0.0)
        s1 = tl.load(s_ptr + s_row + first[:, None] * VD + w, mask=real_d[:, None] & real_w, other=0.0)
        s2 = tl.load(s_ptr + s_row + second[:, None] * VD + w, mask=real_e[:, None] & real_w, other=0.0)
        z0 = tl.load(z_ptr + z_row + tl.arange(0, 1))
        z1 = tl.load(z_ptr + z_row + first, mask=real_d, other=0.0)
        z2 = tl.load(z_ptr + z_row + second, mask=real_e, other=0.0)
    log_decay = 0.0
    if DECAY:
        log_decay = tl.load(log_decay_ptr + row)

    for start in range(0, T, C):
        token = start + c
        real = token < T
        place = b.to(tl.int64) * T + token
        q = tl.load(q_ptr + (place * H + h)[:, None] * KD + d, mask=real[:, None] & real_d, other=0.0)
        k = tl.load(k_ptr + (place * G + shared)[:, None] * KD + d, mask=real[:, None] & real_d, other=0.0)
        v = tl.load(v_ptr + (place * G + shared)[:, None] * VD + w, mask=real[:, None] & real_w, other=0.0)
        dtype: tl.constexpr = q.dtype

        scores = tl.dot(q, tl.trans(k)) * SCALE
        weights = tl.where((c[:, None] >= c) & real, 1.0 + scores + 0.5 * scores * scores, 0.0)
        n = tl.minimum(T - start, C)
        to_query, to_end = tl.zeros((C,), tl.float32) + 1.0, tl.where(real, 1.0, 0.0)
        if DECAY:
            weights *= tl.exp2(log_decay * tl.where(c[:, None] >= c, c[:, None] - c, 0).to(tl.float32))
            to_query = tl.exp2(log_decay * (c + 1).to(tl.float32))
            to_end = tl.where(real, tl.exp2(log_decay * tl.where(real, n - 1 - c, 0).to(tl.float32)), 0.0)
        q32 = q.to(tl.float32) * SCALE
        q2 = 0.5 * _pairs(q32, C, K)
        past = s0[None, :] + tl.dot(q32.to(dtype), s1.to(dtype)) + tl.dot(q2.to(dtype), s2.to(dtype))
        num = tl.dot(weights.to(dtype), v) + to_query[:, None] * past
        if NORMALIZE:
            past_den = z0 + tl.sum(q32 * z1[None, :], 1) + tl.sum(q2 * z2[None, :], 1)
            den = tl.sum(weights, 1) + to_query * past_den + EPS
            num = num / den[:, None]
            if block == 0:
                tl.store(den_ptr + row.to(tl.int64) * T + token, den, mask=real)
        y_at = y_ptr + (place * H + h)[:, None] * VD + w
        tl.store(y_at, num.to(y_ptr.dtype.element_ty), mask=real[:, None] & real_w)

        k32 = k.to(tl.float32)
        kept_k = k32 * to_end[:, None]
        kept_k2 = _pairs(k32, C, K) * to_end[:, None]
        if DECAY:
            kept = tl.exp2(log_decay * n.to(tl.float32))
            s0, s1, s2, z0, z1, z2 = s0 * kept, s1 * kept, s2 * kept, z0 * kept, z1 * kept, z2 * kept
        s0 += tl.sum(v.to(tl.float32) * to_end[:, None], 0)
        s1 += tl.dot(tl.trans(kept_k.to(dtype)), v)
        s2 += tl.dot(tl.trans(kept_k2.to(dtype)), v)
        z0 += tl.sum(to_end, 0)
        z1 += tl.sum(kept_k, 0)
        z2 += tl.sum(kept_k2, 0)

    if STATE_OUT:
        tl.store(s_out_ptr + s_row + w, s0, mask=real_w)
        tl.store(s_out_ptr + s_row + first[:, None] * VD + w, s1, mask=real_d[:, None] & real_w)
        tl.store(s_out_ptr + s_row + second[:, None] * VD + w, s2, mask=real_e[:, None] & real_w)
        if block == 0:
            tl.store(z_out_ptr + z_row + tl.arange(0, 1), z0)
            tl.store(z_out_ptr + z_row + first, z1, mask=real_d)
            tl.store(z_out_ptr + z_row + second, z2, mask=real_e)
