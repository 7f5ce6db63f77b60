"""Compiles a function for an H100 on a machine without one, and reports what the assembler says of its kernels."""

import jax

from pallas_kernels.compile_check.targets import TARGETS


def compile_for_hopper(function, *shapes, capfd, monkeypatch) -> str:
    """The output of ptxas -v for every Mosaic kernel in function(*shapes).

    Needs jax-cuda13-plugin and jax-cuda13-pjrt of jax's version, and ptxas on the PATH or nvidia-cuda-nvcc.
    """
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    sharding = jax.sharding.SingleDeviceSharding(TARGETS["h100"].devices()[0])
    arguments = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in shapes]
    capfd.readouterr()
    jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).compile()
    printed = capfd.readouterr()
    return printed.out + printed.err
