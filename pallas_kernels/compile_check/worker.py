"""Compiles one workload for one target and pickles the result, in a process started by `run.py`.

ptxas writes to the file descriptors of the process, and a process reports a kernel only when it compiles it first.
"""

import importlib
import math
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from pallas_kernels.compile_check.launch import Launch, read_launch
from pallas_kernels.compile_check.targets import TARGETS, Target
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.programs import kernels
from pallas_kernels.workload import Workload


def compile_workload(workload: Workload, target: Target, implementation: str | None) -> dict:
    """HLO, launches, memory and seconds of the compiled program.

    Sequences enter and leave as (b, t, heads * width): on a TPU, XLA would copy a parameter whose last axis is 16.
    """
    inputs, run = workload.abstract_inputs(), workload.build(implementation)

    def merged(shape: tuple[int, ...]) -> tuple[int, ...]:
        whole = workload.kind == "step" or len(shape) < 4
        return shape if whole else (*shape[:2], math.prod(shape[2:]))

    sharding = SingleDeviceSharding(target.devices()[0])

    def program(*arrays):
        outputs = run(*jax.tree.map(lambda x, like: x.reshape(like.shape), arrays, inputs))
        return jax.tree.map(lambda x: x.reshape(merged(x.shape)), outputs)

    entries = jax.tree.map(lambda x: jax.ShapeDtypeStruct(merged(x.shape), x.dtype, sharding=sharding), inputs)
    start = time.perf_counter()
    with lowering_for(target.platform, multiprocessors=target.cores):
        lowered = jax.jit(program).trace(*entries).lower(lowering_platforms=(target.platform,))
    compiled = lowered.compile()
    seconds = time.perf_counter() - start
    memory: Any = compiled.memory_analysis()
    return {
        "hlo": compiled.as_text(),
        "launches": launches(lowered),
        "temporary": memory.temp_size_in_bytes,
        "inputs_outputs": memory.argument_size_in_bytes + memory.output_size_in_bytes,
        "seconds": seconds,
    }


def launches(lowered: jax.stages.Lowered) -> dict[str, Launch]:
    """Launches of the Mosaic GPU kernels of a program, by `Kernel.key`."""
    return {kernel.key: read_launch(kernel.text) for kernel in kernels(lowered)}


def main(workloads: str, group: str, index: str, target: str, implementation: str, output: str) -> None:
    """Compiles a workload of the module `workloads`; an empty `implementation` is the automatic choice."""
    workload = importlib.import_module(workloads).GROUPS[group][int(index)]
    result = compile_workload(workload, TARGETS[target], implementation or None)
    Path(output).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
