"""TPU kernels: their call, matmuls, and heads side by side on the lanes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
VMEM_BYTES = 64 * 2**20
"""VMEM that a kernel may take: the compiler allows 16 MiB on v5e by itself."""

Specs = Mapping[str, tuple[Any, pl.BlockSpec]]


def call_by_name(
    kernel: Callable[[dict[str, Any]], None],
    grid: tuple[int, int, int],
    inputs: Specs,
    outputs: Specs,
    scratch: Mapping[str, tuple[int, ...]],
    *,
    interpret: Any,
    name: str,
) -> dict[str, jax.Array]:
    """`pallas_call` of a kernel of a mapping from names to refs; the last axis of the grid runs in order.

    Args:
      kernel: takes the refs of inputs, outputs and scratch by name.
      grid: (b, heads or groups of them, blocks of tokens).
      inputs, outputs: name -> (array or struct, spec).
      scratch: name -> shape, float32 in VMEM.
      interpret: as of `pallas_call`.
      name: of the kernel in profiles.
    """
    names = (*inputs, *outputs, *scratch)
    found = pl.pallas_call(
        lambda *refs: kernel(dict(zip(names, refs, strict=True))),
        grid=grid,
        in_specs=[spec for _, spec in inputs.values()],
        out_specs=[spec for _, spec in outputs.values()],
        out_shape=[shape for shape, _ in outputs.values()],
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        interpret=interpret,
        name=name,
    )(*[array for array, _ in inputs.values()])
    return dict(zip(outputs, found, strict=True))


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
