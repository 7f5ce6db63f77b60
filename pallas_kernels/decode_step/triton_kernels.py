"""Decode steps in Triton. States are updated in place: a program reads what it overwrites before it writes, and no
other program uses it."""

import triton
import triton.language as tl


@triton.jit
def taylor_kernel(
    q_ptr, k_ptr, v_ptr, s_ptr, z_ptr, decay_ptr, y_ptr, s_out_ptr, z_out_ptr,
    H: tl.constexpr, G: tl.constexpr, KD: tl.constexpr, VD: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    SCALE: tl.constexpr, EPS: tl.constexpr, NORMALIZE: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """Based, Alg. 2, of one row and head: S = D S + phi(k) v^T, z = D z + phi(k), y = (phi(q) S) / (phi(q) z).

    K >= KD, V >= VD: powers of two. Features of order 2 are in pieces x_a x_b, b >= a, one for each a; all are loaded
    before the first is stored.
    """
    row = tl.program_id(0)
    shared = row // (H // G)
    F: tl.constexpr = 1 + KD + KD * (KD + 1) // 2
    d, w = tl.arange(0, K), tl.arange(0, V)
    real_d, real_w = d < KD, w < VD
    q = tl.load(q_ptr + row * KD + d, mask=real_d, other=0.0).to(tl.float32) * SCALE
    k = tl.load(k_ptr + shared * KD + d, mask=real_d, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + shared * VD + w, mask=real_w, other=0.0).to(tl.float32)
    decay = 1.0
    if DECAY:
        decay = tl.load(decay_ptr + row)

    first = row.to(tl.int64) * F
    s0 = tl.load(s_ptr + first * VD + w, mask=real_w, other=0.0)
    z0 = tl.load(z_ptr + first)
    s1 = tl.load(s_ptr + (first + 1 + d)[:, None] * VD + w, mask=real_d[:, None] & real_w, other=0.0)
    z1 = tl.load(z_ptr + first + 1 + d, mask=real_d, other=0.0)
    s2 = ()
    z2 = ()
    for a in tl.static_range(KD):
        feature = first + 1 + KD + a * (2 * KD - a + 1) // 2 + d - a
        real = real_d & (d >= a)
        s2 += (tl.load(s_ptr + feature[:, None] * VD + w, mask=real[:, None] & real_w, other=0.0),)
        z2 += (tl.load(z_ptr + feature, mask=real, other=0.0),)

    s0 = s0 * decay + v
    z0 = z0 * decay + 1.0
    s1 = s1 * decay + k[:, None] * v[None, :]
    z1 = z1 * decay + k
    tl.store(s_out_ptr + first * VD + w, s0, mask=real_w)
    tl.store(z_out_ptr + first, z0)
    tl.store(s_out_ptr + (first + 1 + d)[:, None] * VD + w, s1, mask=real_d[:, None] & real_w)
    tl.store(z_out_ptr + first + 1 + d, z1, mask=real_d)
    read, weight = q[:, None] * s1, q * z1
    for a in tl.static_range(KD):
        feature = first + 1 + KD + a * (2 * KD - a + 1) // 2 + d - a
        real = real_d & (d >= a)
        written = k * tl.load(k_ptr + shared * KD + a).to(tl.float32)
        half = tl.where(d == a, 0.5, tl.where(real, 1.0, 0.0))
        reading = half * q * (tl.load(q_ptr + row * KD + a).to(tl.float32) * SCALE)
        s = s2[a] * decay + written[:, None] * v[None, :]
        z = z2[a] * decay + written
        tl.store(s_out_ptr + feature[:, None] * VD + w, s, mask=real[:, None] & real_w)
        tl.store(z_out_ptr + feature, z, mask=real)
        read += reading[:, None] * s
        weight += reading * z
    y = s0 + tl.sum(read, 0)
    if NORMALIZE:
        y = y / (z0 + tl.sum(weight, 0) + EPS)
    tl.store(y_ptr + row * VD + w, y.to(y_ptr.dtype.element_ty), mask=real_w)


@triton.jit
def window_kernel(
    q_ptr, k_ptr, v_ptr, ring_k_ptr, ring_v_ptr, position_ptr, y_ptr, ring_k_out_ptr, ring_v_out_ptr,
    H: tl.constexpr, G: tl.constexpr, KD: tl.constexpr, VD: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    W: tl.constexpr, N: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Based, Alg. 3, of one row and query head: a running softmax over the W slots of the ring, N at a time.

    The new token's slot is never read, so that the one program of its key/value head that writes it may run first.
    """
    row = tl.program_id(0)
    b, shared = row // H, row // (H // G)
    g = shared % G
    d, w = tl.arange(0, K), tl.arange(0, V)
    real_d, real_w = d < KD, w < VD
    position = tl.load(position_ptr + b)
    slot, filled = position % W, tl.minimum(position, W)
    q = tl.load(q_ptr + row * KD + d, mask=real_d, other=0.0).to(tl.float32) * SCALE
    key = tl.load(k_ptr + shared * KD + d, mask=real_d, other=0.0).to(ring_k_ptr.dtype.element_ty)
    value = tl.load(v_ptr + shared * VD + w, mask=real_w, other=0.0).to(ring_v_ptr.dtype.element_ty)
    largest = tl.sum(q * key.to(tl.float32), 0)
    total = 1.0
    y = value.to(tl.float32)
    for start in range(0, W, N):
        j = start + tl.arange(0, N)
        seen = (j < filled) & (j != slot)
        place = (b.to(tl.int64) * W + j) * G + g
        at = ring_k_ptr + place[:, None] * KD + d
        keys = tl.load(at, mask=seen[:, None] & real_d, other=0.0).to(tl.float32)
        at = ring_v_ptr + place[:, None] * VD + w
        values = tl.load(at, mask=seen[:, None] & real_w, other=0.0).to(tl.float32)
        scores = tl.where(seen, tl.sum(q[None, :] * keys, 1), float("-inf"))
        most = tl.maximum(largest, tl.max(scores, 0))
        weights, kept = tl.exp(scores - most), tl.exp(largest - most)
        y = y * kept + tl.sum(weights[:, None] * values, 0)
        total = total * kept + tl.sum(weights, 0)
        largest = most
    tl.store(y_ptr + row * VD + w, (y / total).to(y_ptr.dtype.element_ty), mask=real_w)
    if row % (H // G) == 0:
        place = (b.to(tl.int64) * W + slot) * G + g
        tl.store(ring_k_out_ptr + place * KD + d, key, mask=real_d)
        tl.store(ring_v_out_ptr + place * VD + w, value, mask=real_w)


@triton.jit
def conv_kernel(
    x_ptr, taps_ptr, bias_ptr, into_ptr, out_ptr, history_ptr, y_ptr, history_out_ptr,
    D: tl.constexpr, W: tl.constexpr, SHARED: tl.constexpr, N_PLAIN: tl.constexpr, BIAS: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """f(sum_a taps[a] in_{i-a} x_{i-a} + bias) out_i of one row and C channels; SHARED rows share taps."""
    row, c = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C)
    real, taps_ptr = c < D, taps_ptr + (row // SHARED) * W * D
    place = row.to(tl.int64) * D + c
    past = row.to(tl.int64) * (W - 1) * D + c
    x = tl.load(x_ptr + place, mask=real, other=0.0)
    if IN:
        x = (x.to(tl.float32) * tl.load(into_ptr + place, mask=real, other=0.0).to(tl.float32)).to(x.dtype)
    before = ()
    for i in tl.static_range(W - 1):
        before += (tl.load(history_ptr + past + i * D, mask=real, other=0.0),)
    y = x.to(tl.float32) * tl.load(taps_ptr + c, mask=real, other=0.0)
    for i in tl.static_range(W - 1):
        y += before[i].to(tl.float32) * tl.load(taps_ptr + (W - 1 - i) * D + c, mask=real, other=0.0)
        if i > 0:
            tl.store(history_out_ptr + past + (i - 1) * D, before[i], mask=real)
    tl.store(history_out_ptr + past + (W - 2) * D, x.to(history_out_ptr.dtype.element_ty), mask=real)
    if BIAS:
        y += tl.load(bias_ptr + (row // SHARED) * D + c, mask=real, other=0.0)
    y = tl.where(c < N_PLAIN, y, y / (1.0 + tl.exp(-y)))
    if OUT:
        y *= tl.load(out_ptr + place, mask=real, other=0.0).to(tl.float32)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=real)
