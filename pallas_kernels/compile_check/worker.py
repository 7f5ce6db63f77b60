"""Compiles one workload for one target in a child process (`pallas_kernels.child`), started by `run.py`.

ptxas writes to the file descriptors of the process, and a process reports a kernel only when it compiles it first.
"""

import importlib
import math
import time
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from pallas_kernels.compile_check.targets import TARGETS
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.programs import kernels
from pallas_kernels.workload import Workload


def compile_workload(module: str, group: str, index: int, target: str, implementation: str | None) -> dict[str, Any]:
    """HLO, texts of the Mosaic GPU modules by `Kernel.key`, memory and seconds of the compiled program.

    Sequences enter and leave as (b, t, heads * width): on a TPU, XLA would copy a parameter whose last axis is 16.
    """
    workload: Workload = importlib.import_module(module).GROUPS[group][index]
    inputs, run = workload.abstract_inputs(), workload.build(implementation)

    def merged(shape: tuple[int, ...]) -> tuple[int, ...]:
        whole = workload.kind == "step" or len(shape) < 4
        return shape if whole else (*shape[:2], math.prod(shape[2:]))

    device = TARGETS[target]
    sharding = SingleDeviceSharding(device.devices()[0])

    def program(*arrays):
        outputs = run(*jax.tree.map(lambda x, like: x.reshape(like.shape), arrays, inputs))
        return jax.tree.map(lambda x: x.reshape(merged(x.shape)), outputs)

    entries = jax.tree.map(lambda x: jax.ShapeDtypeStruct(merged(x.shape), x.dtype, sharding=sharding), inputs)
    start = time.perf_counter()
    with lowering_for(device.platform, multiprocessors=device.cores):
        lowered = jax.jit(program).trace(*entries).lower(lowering_platforms=(device.platform,))
    compiled = lowered.compile()
    seconds = time.perf_counter() - start
    memory: Any = compiled.memory_analysis()
    return {
        "hlo": compiled.as_text(),
        "modules": {kernel.key: kernel.text for kernel in kernels(lowered)},
        "temporary": memory.temp_size_in_bytes,
        "inputs_outputs": memory.argument_size_in_bytes + memory.output_size_in_bytes,
        "seconds": seconds,
    }
