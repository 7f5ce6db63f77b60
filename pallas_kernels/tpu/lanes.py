"""TPU kernels: the call, matmuls, and selection of lanes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
VMEM_BYTES = 64 * 2**20
"""VMEM limit of a kernel; the compiler's default is 16 MiB on v5e."""

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
    """`pallas_call` of a kernel that takes refs by name; the last axis of the grid is sequential.

    Args:
      kernel: takes the refs of inputs, outputs and scratch by name.
      grid: (b, heads or groups of them, blocks of tokens).
      inputs, outputs: name -> (array or struct, spec).
      scratch: name -> shape, float32 in VMEM.
      interpret, name: as for `pallas_call`.
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
    """x @ y with float32 accumulation; full precision for float32 operands."""
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(x, y, (contract, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def matmul_nt(x, y):
    """x @ y^T; the MXU takes y transposed."""
    return matmul(x, y, ((1,), (1,)))


def only_lanes(x, first: int, width: int):
    """Keeps `width` lanes of x from `first` on; zeros elsewhere."""
    if x.shape[1] == width:
        return x
    # Two bfloat16 as one integer: v5e has no 16-bit masks.
    bits = x if x.dtype == jnp.float32 else pltpu.bitcast(x, jnp.int32)
    lane = lax.broadcasted_iota(jnp.int32, bits.shape, 1)
    bits = jnp.where((lane >= first) & (lane < first + width), bits, jnp.zeros_like(bits))
    return bits if x.dtype == jnp.float32 else pltpu.bitcast(bits, x.dtype)
