"""Inside the Hopper kernels of Taylor attention: tiles in shared memory, and features of tiles in registers.

Layouts: `mosaic_gpu_layout`.
"""

import functools

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import NARROW, PER_ROW, WGMMA, WIDE, Mma, iota
from pallas_kernels.taylor_attention import mosaic_gpu_features as scheme
from pallas_kernels.taylor_attention.mosaic_gpu_lanes import on_lanes
from pallas_kernels.taylor_attention.mosaic_gpu_widths import CHUNK, Cut, Widths

MIDDLE = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(64))  # (., 32 n) bf16 tiles


def zeros(rows, columns):
    return plgpu.layout_cast(jnp.zeros((rows, columns), jnp.float32), WGMMA)


def features(mma: Mma, x, widths: Widths, cut: Cut, *, halved: bool):
    """Columns of phi(x), of x (64, keys) in registers, both of `Widths.dtype`; halved: on the query side."""
    tiles = scheme.tiles_between(widths.groups, *cut)
    function = functools.partial(scheme.features, tiles=tiles, halved=halved)
    return on_lanes(function, x, width=cut[1] - cut[0], dtype=widths.dtype, interpreted=mma.staging is not None)


def pull_back(mma: Mma, x, u, start, widths: Widths, cut: Cut, *, halved: bool):
    """start + sum_f u_f d phi_f / d x, (64, keys) float32, over the columns of a cut; start None: zeros."""
    tiles = scheme.tiles_between(widths.groups, *cut)
    function = functools.partial(scheme.pull_back, tiles=tiles, halved=halved)
    arrays = (x, u) if start is None else (x, u, start)
    return on_lanes(function, *arrays, width=widths.keys, dtype=jnp.float32, interpreted=mma.staging is not None)


def tile(slots, width, rows=CHUNK, *, beside: int | None = None):
    """Shared bf16 (*slots, rows, width) tiles that wgmma reads, and TMA fills.

    beside: width of the other operand of a wgmma, where that is in shared memory too; both need one swizzle.
    """
    transforms = {16: NARROW, 64: WIDE}.get(beside or width, MIDDLE)
    return plgpu.SMEM((*slots, rows, width), jnp.bfloat16, transforms=transforms)


def output_tile(width, dtype):
    """A (64, width) tile that TMA stores, 16, 32 or 64 wide in bfloat16, 16 or 32 in float32; None: 64 float32."""
    if width is None:
        return plgpu.SMEM((CHUNK,), jnp.float32)
    if dtype == jnp.bfloat16:
        return tile((), width)
    transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(4 * width))
    return plgpu.SMEM((CHUNK, width), dtype, transforms=transforms)


def staging_scratch(interpret, widths: Widths, warpgroups):
    """The tiles of `this_mma`."""
    return {} if interpret is None else {f"stage_{n}": tile((warpgroups,), n) for n in _staged(widths)}


def this_mma(refs, interpret, widths: Widths, warpgroup) -> Mma:
    """That of one warpgroup, with the tiles of `staging_scratch`."""
    staging = None if interpret is None else tuple(getattr(refs, f"stage_{n}") for n in _staged(widths))
    return Mma(staging, warpgroup)


def _staged(widths: Widths) -> list[int]:
    """Widths of the operands that wgmma takes from registers."""
    return sorted({widths.keys, widths.values, CHUNK, *(stop - start for start, stop in widths.read)})


def write_constants(refs):
    """Writes `ones_s`, (64, keys) with ones in column 0: times the rows of z from `keys` on it broadcasts z1; and
    `index_s`, 0 .. 63."""
    ref = refs.ones_s
    refs.index_s[...] = plgpu.broadcasted_iota(jnp.int32, (CHUNK,), 0, layout=PER_ROW).astype(jnp.float32)
    ref[...] = jnp.where(iota(ref.shape, 1) == 0, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()
