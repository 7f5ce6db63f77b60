"""Inside the Hopper kernels of Taylor attention: tiles in shared memory, and features of tiles in registers.

Layouts: `mosaic_gpu_layout`.
"""

import functools

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import NARROW, WGMMA, WIDE, Mma, iota
from pallas_kernels.taylor_attention import mosaic_gpu_features
from pallas_kernels.taylor_attention.mosaic_gpu_features import COLUMNS
from pallas_kernels.taylor_attention.mosaic_gpu_lanes import on_lanes
from pallas_kernels.taylor_attention.mosaic_gpu_layout import CHUNK, KEY_DIM

TRANSFORMS = {
    KEY_DIM: NARROW,
    64: WIDE,
    COLUMNS: (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(64)),  # 64 does not divide 160
}


def zeros(n=64):
    return plgpu.layout_cast(jnp.zeros((64, n), jnp.float32), WGMMA)


def features(mma: Mma, x, *, halved: bool):
    """phi(x), (64, 160) bf16, of x (64, 16) bf16 in registers; halved: on the query side."""
    function = functools.partial(mosaic_gpu_features.features, halved=halved)
    return on_lanes(function, x, width=COLUMNS, dtype=jnp.bfloat16, interpreted=mma.staging is not None)


def pull_back_near(mma: Mma, x, u, *, halved: bool):
    """sum_f u_f d phi_f / d x, (64, 16) float32, over the near columns, u (64, 96) float32."""
    function = functools.partial(mosaic_gpu_features.near_pull_back, halved=halved)
    return on_lanes(function, x, u, width=KEY_DIM, dtype=jnp.float32, interpreted=mma.staging is not None)


def pull_back_far(mma: Mma, x, u, start):
    """start + the sum over the far columns, u (64, 64)."""
    function = mosaic_gpu_features.far_pull_back
    return on_lanes(function, x, u, start, width=KEY_DIM, dtype=jnp.float32, interpreted=mma.staging is not None)


def tile(slots, width):
    """Shared bf16 (64, width) tiles that wgmma reads, and TMA fills; width 16, 64 or 160."""
    shape = (CHUNK, width) if slots is None else (slots, CHUNK, width)
    return plgpu.SMEM(shape, jnp.bfloat16, transforms=TRANSFORMS[width])


def staging_scratch(interpret, warpgroups):
    return {} if interpret is None else {f"stage_{width}": tile(warpgroups, width) for width in TRANSFORMS}


def this_mma(refs, interpret, warpgroup) -> Mma:
    """That of one warpgroup, with the tiles of `staging_scratch`."""
    return Mma(None if interpret is None else tuple(getattr(refs, f"stage_{n}") for n in TRANSFORMS), warpgroup)


def write_ones(ref):
    """Writes the (64, 16) matrix with ones in column 0: times rows 16..31 of z it broadcasts row 16 to every
    row."""
    ref[...] = jnp.where(iota((64, KEY_DIM), 1) == 0, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()
