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
NARROW_WIDTH = 16
NARROW = (plgpu.TilingTransform((8, 16)), plgpu.SwizzleTransform(32))  # (., 16) bf16 tiles
WIDE = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))  # (., 64) bf16 tiles
BARRIERS = "PALLAS_KERNELS_BARRIERS"


@dataclasses.dataclass(frozen=True)
class Mma:
    """wgmma, with the two adapters that GPU interpret mode needs.

    staging: None on a device. In interpret mode, where an A operand in registers is not supported, shared-memory
    tiles (warpgroups, 64, width), one for each width of such operands, which pass through them.
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

    def of_registers(self, a, b):
        """a @ b with a (64, 64) in registers and b (64, 16), as a float32 array."""

        def run(acc):
            self.registers(acc, a, b)
            return acc[...]

        return pl.run_scoped(run, plgpu.ACC((64, NARROW_WIDTH), jnp.float32))

    def product(self, a, b):
        """a @ b for shared-memory tiles a (64, .) and b (., 64), as a float32 array."""

        def run(acc):
            plgpu.wgmma(acc, a, b)
            return acc[...]

        return pl.run_scoped(run, plgpu.ACC((64, 64), jnp.float32))

    def update(self, values, accumulate):
        """Runs accumulate(*accs) on accumulators that start from values; returns the new values."""
        if self.staging is None:
            return pl.run_state(lambda accs: accumulate(*accs))(tuple(plgpu.ACC.init(x) for x in values))

        # run_state has no lowering in interpret mode: start from zero and add.
        def run(*accs):
            accumulate(*accs)
            return tuple(acc[...] for acc in accs)

        added = pl.run_scoped(run, *[plgpu.ACC(x.shape, jnp.float32) for x in values])
        return tuple(x + y for x, y in zip(values, added, strict=True))


def iota(shape, dim, layout=WGMMA):
    return plgpu.broadcasted_iota(jnp.int32, shape, dim, layout=layout)


def read(ref):
    """A tile of shared memory, in registers."""
    return plgpu.load(ref, layout=WGMMA)


def rows_to(x, n=64):
    """(64,) per-row values -> (64, n)."""
    return lax.broadcast_in_dim(x, (64, n), [0])


def columns_to(x):
    """(64,) per-column values -> (64, 64)."""
    return lax.broadcast_in_dim(x, (64, 64), [1])


def launch(
    name, body, operands, outputs, scratch, *, grid, warpgroups, approx_math=False, auto_barriers=True, interpret
):
    """Runs body(refs) in every warpgroup of a grid, a dict of sizes by name; refs is a namespace of named references.

    Operands that are None are not passed; their name is None in the namespace, unless scratch has it.
    auto_barriers: False leaves out the barriers that Pallas puts around every store and before every copy; the body
    then orders the warps of a warpgroup itself, which interpret mode cannot check (there a warpgroup is one thread).
    With PALLAS_KERNELS_BARRIERS=1 in the environment they are always there, to find out whether one is missing.
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
