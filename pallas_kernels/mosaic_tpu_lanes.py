"""TPU kernels: matmuls, and heads side by side on the lanes."""

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

LANES = 128
VMEM_BYTES = 64 * 2**20
"""What a kernel may take: the compiler allows 16 MiB on v5e by itself."""


def matmul(x, y, contract=((1,), (0,))):
    """x @ y; float32 accumulation, float32 operands at full precision."""
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(x, y, (contract, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def matmul_nt(x, y):
    """x @ y^T; the MXU takes y transposed."""
    return matmul(x, y, ((1,), (1,)))


def only_lanes(x, first: int, width: int):
    """x, zeros in all but `width` lanes from `first` on."""
    if x.shape[1] == width:
        return x
    # One integer for two bfloat16: v5e has no masks of 16 bits.
    bits = x if x.dtype == jnp.float32 else pltpu.bitcast(x, jnp.int32)
    lane = lax.broadcasted_iota(jnp.int32, bits.shape, 1)
    bits = jnp.where((lane >= first) & (lane < first + width), bits, jnp.zeros_like(bits))
    return bits if x.dtype == jnp.float32 else pltpu.bitcast(bits, x.dtype)
