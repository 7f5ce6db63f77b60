"""Matrix products, and rows of arrays (t, width) as tuples of registers, for Triton kernels that take tokens in turn.

All loads of a group of tokens are issued before the first one is used. A token after the last reads as zeros.
"""

# ruff: noqa: RUF005 (Triton has no starred expressions)

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def product(x, y):
    """Matrix product that accumulates in float32; operands of float32 are sums of two numbers of tf32."""
    return tl.dot(x, y, input_precision="tf32x3")


@triton.jit
def with_tail(real, token, T: tl.constexpr, RAGGED: tl.constexpr):
    """`real`, and false for a token after the last one; RAGGED: whether there are such tokens."""
    if RAGGED:
        real = real & (token < T)
    return real


@triton.jit
def load_rows(
    ptr, first, columns, real, T: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr, RAGGED: tl.constexpr
):
    """Columns of `COUNT` rows from `first` on, in float32, zeros where not `real`."""
    rows = ()
    for i in tl.static_range(COUNT):
        mask = with_tail(real, first + i, T, RAGGED)
        rows = rows + (tl.load(ptr + (first + i) * WIDTH + columns, mask=mask, other=0.0),)
    found = ()
    for i in tl.static_range(COUNT):
        found = found + (rows[i].to(tl.float32),)
    return found


@triton.jit
def load_keep(ptr, first, T: tl.constexpr, COUNT: tl.constexpr, DOCUMENTS: tl.constexpr):
    """Keep factors of `COUNT` tokens; 1 after the last, and without documents."""
    found = ()
    for i in tl.static_range(COUNT):
        keep = 1.0
        if DOCUMENTS:
            keep = tl.load(ptr + first + i, mask=first + i < T, other=1.0)
        found = found + (keep,)
    return found
