"""Hopper kernels: layouts of (64, n) tiles in registers and shared memory, matmuls on them, and the launch."""

import dataclasses
import os
import types
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

WGMMA = plgpu.Layout.WGMMA
PER_ROW = WGMMA.reduce(1)  # one value per row of a (64, n) tile
PER_COLUMN = WGMMA.reduce(0)
NARROW = (plgpu.TilingTransform((8, 16)), plgpu.SwizzleTransform(32))  # (., 16) bf16 tiles
WIDE = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))  # (., 64) bf16 tiles
BARRIERS = "PALLAS_KERNELS_BARRIERS"


@dataclasses.dataclass(frozen=True)
class Mma:
    """wgmma, with adapters for GPU interpret mode.

    staging: None on a device; in interpret mode, shared tiles (warpgroups, 64, width) for A operands in registers.
    """

    staging: tuple[Any, ...] | None
    warpgroup: int

    def registers(self, acc, a, b):
        """acc += a @ b with a in registers."""
        if self.staging is None:
            plgpu.wgmma(acc, a, b)
            return
        tile = next(x for x in self.staging if x is not None and x.shape[-1] == a.shape[1]).at[self.warpgroup]
        tile[...] = a
        plgpu.commit_smem()
        plgpu.wgmma(acc, tile, b)

    def update(self, values, accumulate):
        """Runs accumulate(*accs) on accumulators initialized with values; returns the new values."""
        if self.staging is None:
            return pl.run_state(lambda accs: accumulate(*accs))(tuple(plgpu.ACC.init(x) for x in values))

        # run_state has no lowering in interpret mode: starts from zero and adds.
        def run(*accs):
            accumulate(*accs)
            return tuple(acc[...] for acc in accs)

        added = pl.run_scoped(run, *[plgpu.ACC(x.shape, jnp.float32) for x in values])
        return tuple(x + y for x, y in zip(values, added, strict=True))


def products(*pairs):
    """The sum of x y over pairs of shared-memory tiles, (64, 64) float32."""
    return sum_products(pairs)[0]


def sum_products(*sums):
    """For each list of pairs of shared-memory tiles, the sum of x y, (64, 64) float32; all are in flight together."""

    def run(*accs):
        for acc, pairs in zip(accs, sums, strict=True):
            for x, y in pairs:
                plgpu.wgmma(acc, x, y)
        return tuple(acc[...] for acc in accs)

    return pl.run_scoped(run, *[plgpu.ACC((64, 64), jnp.float32)] * len(sums))


def meet(barrier):
    """Waits for the other warpgroup of a thread block."""
    plgpu.barrier_arrive(barrier)
    plgpu.barrier_wait(barrier)


def start_state(ref):
    """A (64, 64) float32 tile of global memory, in registers; zeros for None."""
    if ref is None:
        return plgpu.layout_cast(jnp.zeros((64, 64), jnp.float32), WGMMA)
    return plgpu.load(ref, layout=WGMMA, optimized=False)


def iota(shape, dim, layout=WGMMA):
    return plgpu.broadcasted_iota(jnp.int32, shape, dim, layout=layout)


def read(ref):
    """Loads a tile of shared memory into registers."""
    return plgpu.load(ref, layout=WGMMA)


def rows_to(x, n=64):
    """Broadcasts (64,) per-row values to (64, n)."""
    return lax.broadcast_in_dim(x, (64, n), [0])


def columns_to(x):
    """Broadcasts (64,) per-column values to (64, 64)."""
    return lax.broadcast_in_dim(x, (64, 64), [1])


def launch(
    name, body, operands, outputs, scratch, *, grid, warpgroups=1, approx_math=False, auto_barriers=False, interpret
):
    """Runs body(refs) in every warpgroup of a grid (sizes by name); refs is a namespace of named references.

    The name of an operand that is None is None, unless scratch has it. auto_barriers: False removes Pallas' barriers
    around every store and before every copy; the body then orders the warps of a warpgroup itself, which interpret mode
    cannot check. PALLAS_KERNELS_BARRIERS=1 in the environment keeps them.
    """
    given = {key: x for key, x in operands.items() if x is not None}

    def kernel_body(*refs, **scratch_refs):
        named = dict.fromkeys(operands)
        named.update(zip((*given, *outputs), refs, strict=True), **scratch_refs)
        body(types.SimpleNamespace(**named))

    kernel_body.__name__ = name
    kernel = plgpu.kernel(
        kernel_body,
        out_type=tuple(outputs.values()),
        scratch_types=scratch,
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        num_threads=warpgroups,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane,
            approx_math=approx_math,
            unsafe_no_auto_barriers=not auto_barriers and os.environ.get(BARRIERS) != "1",
        ),
        interpret=interpret,
    )
    return dict(zip(outputs, kernel(*given.values()), strict=True))
