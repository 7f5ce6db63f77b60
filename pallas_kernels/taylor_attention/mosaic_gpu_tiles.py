"""Inside the Hopper kernels of Taylor attention: features of (64, 16) tiles, and scratch.

Layouts and the feature map: `mosaic_gpu_layout`.
"""

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import NARROW, WGMMA, WIDE, Mma, iota
from pallas_kernels.taylor_attention.mosaic_gpu_layout import CHUNK, KEY_DIM


def zeros(n=64):
    return plgpu.layout_cast(jnp.zeros((64, n), jnp.float32), WGMMA)


def feature_factors(mma: Mma, group: int, x, first, second):
    """The two factors x A + a0 and x B + b0 of phi(x) for one group of 64 features; x (64, 16) in shared
    memory."""
    a, b = mma.product(x, first.at[group]), mma.product(x, second.at[group])
    if group == 0:
        column = iota((64, 64), 1)
        a = a + jnp.where(column == 0, 1.0, 0.0)
        b = b + jnp.where(column <= KEY_DIM, 1.0, 0.0)
    return a, b


def tile(slots, width):
    """Shared bf16 (64, width) tiles that TMA fills and wgmma reads; width 16 or 64."""
    shape = (CHUNK, width) if slots is None else (slots, CHUNK, width)
    return plgpu.SMEM(shape, jnp.bfloat16, transforms=NARROW if width == KEY_DIM else WIDE)


def staging_scratch(interpret, warpgroups):
    if interpret is None:
        return {}
    return {"stage_narrow": tile(warpgroups, KEY_DIM), "stage_wide": tile(warpgroups, 64)}


def write_ones(ref):
    """Writes the (64, 16) matrix with ones in column 0: times rows 16..31 of z it broadcasts row 16 to every
    row."""
    ref[...] = jnp.where(iota((64, KEY_DIM), 1) == 0, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()
