"""The recurrence over chunks of 64 tokens in Triton: one scan, which serves both directions, and gradients per chunk.

`recur_kernel` has one program per row and block of values, which keeps its part of the state in float32 registers.
`gradients_kernel` has one program per chunk, which sums over blocks of values. `xla.py` has the equations.
"""

import triton
import triton.language as tl

from pallas_kernels.triton_rows import product


@triton.jit
def recur_kernel(
    x_ptr, read_ptr, write_ptr, mix_ptr, keep_ptr, state_ptr, y_ptr, last_ptr, states_ptr, N: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, VD: tl.constexpr, V: tl.constexpr, STATE_IN: tl.constexpr, SAVE: tl.constexpr,
    REVERSE: tl.constexpr,
):  # fmt: skip
    """y, the last state, and if SAVE the states before all chunks; VD: width of the values, V: values of a program."""
    row = tl.program_id(0).to(tl.int64)
    c, d = tl.arange(0, 64), tl.arange(0, K)
    w = tl.program_id(1) * V + tl.arange(0, V)
    real = (w < VD)[None, :]
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    # Offsets of a chunk are 32-bit numbers: 64-bit ones need many registers.
    keys, values = c[:, None] * H * K + d[None, :], c[:, None] * H * VD + w[None, :]
    inner = d[:, None] * VD + w[None, :]
    state = tl.zeros((K, V), tl.float32)
    if STATE_IN:
        state = tl.load(state_ptr + row * K * VD + inner, mask=real, other=0.0)
    for step in range(N):
        chunk = row // H * N + (N - 1 - step if REVERSE else step)
        at = chunk * H + row % H
        first = chunk * 64 * H + row % H
        rounded = state.to(dtype)
        if SAVE:
            tl.store(states_ptr + at * K * VD + inner, rounded, mask=real)
        mixed = tl.load(x_ptr + first * VD + values, mask=real, other=0.0).to(tl.float32)
        mixed += product(tl.load(read_ptr + first * K + keys), rounded)
        mix = tl.load(mix_ptr + at * 4096 + c[:, None] * 64 + c[None, :])
        y = product(tl.trans(mix) if REVERSE else mix, mixed.to(dtype)).to(dtype)
        tl.store(y_ptr + first * VD + values, y, mask=real)
        keep = tl.load(keep_ptr + at * K + d)
        state = keep[:, None] * state + product(tl.trans(tl.load(write_ptr + first * K + keys)), y)
    tl.store(last_ptr + row * K * VD + inner, state, mask=real)


@triton.jit
def gradients_kernel(
    x_ptr, read_ptr, write_ptr, y_ptr, dy_ptr, dx_ptr, before_ptr, after_ptr, dread_ptr, dwrite_ptr, dmix_ptr,
    dkeep_ptr, H: tl.constexpr, K: tl.constexpr, VD: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Gradients of read, write, mix and keep; VD: width of the values, V: values of a step."""
    at = tl.program_id(0).to(tl.int64)
    c, d = tl.arange(0, 64), tl.arange(0, K)
    first = (at // H) * 64 * H + at % H
    keys = c[:, None] * H * K + d[None, :]
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    read, write = tl.load(read_ptr + first * K + keys), tl.load(write_ptr + first * K + keys)
    dread, dwrite = tl.zeros((64, K), tl.float32), tl.zeros((64, K), tl.float32)
    dmix, dkeep = tl.zeros((64, 64), tl.float32), tl.zeros((K,), tl.float32)
    for block in range(tl.cdiv(VD, V)):
        w = block * V + tl.arange(0, V)
        real = (w < VD)[None, :]
        inner = d[:, None] * VD + w[None, :]
        values = c[:, None] * H * VD + w[None, :]
        before = tl.load(before_ptr + at * K * VD + inner, mask=real, other=0.0)
        dread += product(tl.load(dx_ptr + first * VD + values, mask=real, other=0.0), tl.trans(before))
        mixed = tl.load(x_ptr + first * VD + values, mask=real, other=0.0).to(tl.float32) + product(read, before)
        after = tl.load(after_ptr + at * K * VD + inner, mask=real, other=0.0)
        dkeep += tl.sum(before.to(tl.float32) * after.to(tl.float32), 1)
        dwrite += product(tl.load(y_ptr + first * VD + values, mask=real, other=0.0), tl.trans(after))
        dtotal = tl.load(dy_ptr + first * VD + values, mask=real, other=0.0).to(tl.float32) + product(write, after)
        dmix += product(dtotal.to(dtype), tl.trans(mixed.to(dtype)))
    tl.store(dread_ptr + first * K + keys, dread.to(dtype))
    tl.store(dwrite_ptr + first * K + keys, dwrite.to(dtype))
    tl.store(dmix_ptr + at * 4096 + c[:, None] * 64 + c[None, :], dmix.to(dtype))
    tl.store(dkeep_ptr + at * K + d, dkeep)
