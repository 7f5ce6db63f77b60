"""Launches of `triton_kernels.py`, for NVIDIA GPUs from compute capability 8.0 on: one kernel per step.

Results of a state alias the operand. So XLA updates a donated state in place, and copies a state that is used again.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.decode_step.problem import ConvProblem, TaylorProblem, WindowProblem
from pallas_kernels.triton_call import Launch, as_rows, like, run, wrong_dtype

MAX_KEY_DIM = 16
"""Of Taylor attention: the whole state of a head is in registers."""
MAX_VALUE_DIM = 128
MAX_TAPS = 8
SLOTS = 64
"""Most slots of a ring that are loaded together."""
FEW_SLOTS = 2048
"""Slots up to which one program per head is enough for a small batch."""
CHANNELS = 512
MULTIPROCESSORS = 132


def taylor_objection(p: TaylorProblem) -> str | None:
    """Why the kernel cannot serve a step of Taylor attention, or None."""
    if p.k > MAX_KEY_DIM or p.v > MAX_VALUE_DIM:
        return f"widths {p.k} of keys, {p.v} of values exceed {MAX_KEY_DIM}, {MAX_VALUE_DIM}"
    return wrong_dtype(*p.dtypes)


def window_objection(p: WindowProblem) -> str | None:
    """Why the kernel cannot serve a step of attention, or None."""
    if max(p.k, p.v) > MAX_VALUE_DIM:
        return f"widths {p.k} of keys, {p.v} of values exceed {MAX_VALUE_DIM}"
    return wrong_dtype(p.dtype_name, p.cache_dtype)


def window_automatic(p: WindowProblem) -> bool:
    """Whether there are enough programs: a program reads all slots of its head."""
    return p.window <= FEW_SLOTS or p.b * p.h >= MULTIPROCESSORS


def conv_objection(p: ConvProblem) -> str | None:
    """Why the kernel cannot serve a step of a convolution, or None."""
    return wrong_dtype(p.dtype_name) or (None if 2 <= p.w <= MAX_TAPS else f"{p.w} taps are not 2 to {MAX_TAPS}")


def taylor(q, k, v, s, z, decay, options):
    """`xla.taylor` by a kernel; a batch of calls is one call with more rows."""

    @as_rows
    def call(q, k, v, s, z, decay):
        from pallas_kernels.decode_step import triton_kernels as kernels

        (b, h, k_dim), (g, v_dim) = q.shape, v.shape[1:]
        constants = {
            "H": h, "G": g, "KD": k_dim, "VD": v_dim, "K": _power(k_dim), "V": _power(v_dim),
            "SCALE": options.scale, "EPS": options.eps, "NORMALIZE": options.normalize, "DECAY": decay is not None,
        }  # fmt: skip
        inputs, outputs = (q, k, v, s, z, decay), (like((b, h, v_dim), v.dtype), *_all_like(s, z))
        warps = 8 if _power(v_dim) <= 64 else 16
        return run(
            Launch(kernels.taylor_kernel, inputs, outputs, (b * h,), constants, warps=warps, aliases=((3, 1), (4, 2)))
        )

    kept = None if decay is None else jnp.broadcast_to(decay.astype(jnp.float32), q.shape[:2])
    return call(q, k, v, s, z, kept)


def window(q, k, v, ring_k, ring_v, position, options):
    """`xla.window` by a kernel; a batch of calls is one call with more rows."""

    @as_rows
    def call(*operands):
        from pallas_kernels.decode_step import triton_kernels as kernels

        q, _, v, ring_k, ring_v, _ = operands
        (b, h, k_dim), (g, v_dim) = q.shape, v.shape[1:]
        constants = {
            "H": h, "G": g, "KD": k_dim, "VD": v_dim, "K": _power(k_dim), "V": _power(v_dim),
            "W": ring_k.shape[1], "N": min(SLOTS, _power(ring_k.shape[1])), "SCALE": options.scale,
        }  # fmt: skip
        outputs = like((b, h, v_dim), v.dtype), *_all_like(ring_k, ring_v)
        return run(Launch(kernels.window_kernel, operands, outputs, (b * h,), constants, aliases=((3, 1), (4, 2))))

    return call(q, k, v, ring_k, ring_v, position)


def conv(x, taps, bias, input_gate, output_gate, history, options):
    """`xla.conv` by a kernel, which rounds y once; a batch of calls is one call with more rows."""

    @as_rows
    def call(x, taps, bias, input_gate, output_gate, history):
        from pallas_kernels.decode_step import triton_kernels as kernels

        (b, d), (groups, n_taps) = x.shape, taps.shape[:2]
        inputs = x, taps, bias, input_gate, output_gate, history
        constants = {
            "D": d, "W": n_taps, "SHARED": b // groups, "N_PLAIN": options.n_plain, "BIAS": bias is not None,
            "IN": input_gate is not None, "OUT": output_gate is not None, "C": CHANNELS,
        }  # fmt: skip
        outputs = _all_like(x, history)
        grid = (b, -(-d // CHANNELS))
        return run(Launch(kernels.conv_kernel, inputs, outputs, grid, constants, aliases=((5, 1),)))

    taps, bias = taps[None].astype(jnp.float32), None if bias is None else bias[None].astype(jnp.float32)
    return call(x, taps, bias, input_gate, output_gate, history)


def _power(n: int) -> int:
    """Smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def _all_like(*arrays: jax.Array) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(like(x.shape, x.dtype) for x in arrays)
