"""Kernels that a compile check must refuse, for `test_compile_check.py`."""

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention import taylor_attention
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.workload import Workload


def too_many_accumulators(x):
    """Two float32 (64, 256) accumulators are 256 registers a thread of one warpgroup; there are 255."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def body(x_ref, y_ref, a, barrier):
        plgpu.copy_gmem_to_smem(x_ref, a, barrier)
        plgpu.barrier_wait(barrier)

        def accumulate(first, second):
            @pl.loop(0, 4)
            def _(_):
                plgpu.wgmma(first, a.at[:64], a.T)
                plgpu.wgmma(second, a.at[64:128], a.T)
                plgpu.wgmma_wait(0)

            y_ref[0] = first[...]
            y_ref[1] = second[...]

        accumulator = plgpu.ACC((64, 256), jnp.float32)
        pl.run_scoped(accumulate, accumulator, accumulator)

    tiled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((2, 64, 256), jnp.float32),
        scratch_types=[plgpu.SMEM((256, 64), jnp.bfloat16, transforms=tiled), plgpu.Barrier()],
        grid=(1,),
        grid_names=("i",),
    )(x)


def _spilling_inputs(seed):
    return (jax.random.normal(jax.random.key(seed), (256, 64), jnp.bfloat16),)


GROUPS = {
    "spills": (
        Workload(
            op="unfit", name="two_accumulators", kind="step", sizes={}, build=lambda _: too_many_accumulators,
            truth=too_many_accumulators,
            inputs=_spilling_inputs, flops=1.0, bytes=1.0,
        ),
    ),
    "copies": (
        Workload(
            op="unfit", name="one_key_head", kind="forward", sizes={}, build=lambda _: taylor_attention,
            truth=taylor_attention,
            inputs=Problem(b=4, t=8192, h=16, g=1, k=16, v=64).inputs, flops=1.0, bytes=1.0,
        ),
    ),
}  # fmt: skip
