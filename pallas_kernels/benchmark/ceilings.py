"""Measured bandwidth and FLOP/s of a device, and the floor of a workload that follows from them."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.benchmark import programs, timing
from pallas_kernels.workload import Workload

COPY_BYTES = {"cpu": 2**28, "gpu": 2**31, "tpu": 2**30}
MATMUL = {"cpu": (2048, "float32"), "gpu": (8192, "bfloat16"), "tpu": (8192, "bfloat16")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Rates that the device reaches."""

    bandwidth: float
    """Bytes read and written per second, in the negation of a large array."""
    flops: float
    """FLOP/s of a square matmul of random numbers."""
    matmul: str
    """Size and dtype of the matmul."""


def measure(platform: str, *, seconds: float, repeats: int) -> Ceilings:
    """Measures both on the default device."""
    n, dtype = MATMUL[platform]
    length = COPY_BYTES[platform] // 4

    def vector(seed):
        return (jax.random.normal(jax.random.key(seed), (length,), jnp.float32),)

    def matrices(seed):
        keys = jax.random.split(jax.random.key(seed), 2)
        return tuple(jax.random.normal(key, (n, n), jnp.float32).astype(dtype) for key in keys)

    copy = _seconds(lambda x: -x, vector, seconds, repeats)
    matmul = _seconds(lambda x, y: x @ y, matrices, seconds, repeats)
    return Ceilings(bandwidth=8 * length / copy, flops=2.0 * n**3 / matmul, matmul=f"{n}^3 {dtype}")


def floor(workload: Workload, ceilings: Ceilings) -> tuple[float, str]:
    """Floor in seconds, and its bound: "memory" or "compute"."""
    memory, compute = workload.bytes / ceilings.bandwidth, workload.flops / ceilings.flops
    return max(memory, compute), "memory" if memory >= compute else "compute"


def _seconds(function: Callable, inputs: Callable[[int], tuple], seconds: float, repeats: int) -> float:
    sets = [inputs(seed) for seed in range(2)]
    program = programs.JaxProgram(programs.lower(function, sets[0], 1).compile(), sets, 1)
    program.start()
    return timing.measure(program.batch, seconds=seconds, repeats=repeats).median
