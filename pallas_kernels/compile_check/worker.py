"""Compiles one workload for one target and pickles what it learnt: a process of its own, started by `run.py`.

Its own, because ptxas writes to the file descriptors of the process, and because a kernel that the process has compiled
before comes from a cache and is not reported again.
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
    """Text, bytes and seconds of the compiled program.

    Sequences enter and leave as (b, t, heads * width), as projections make them: XLA would lay out a parameter whose
    last axis is 16 anew on a TPU, and that is no work of the kernel.
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
    """The launch of each Mosaic GPU kernel of a program, by the hash of the kernel as compiled programs print it."""
    return {kernel.key: read_launch(kernel.text) for kernel in kernels(lowered)}


def main(workloads: str, group: str, index: str, target: str, implementation: str, output: str) -> None:
    """`workloads` is the module that has GROUPS; an empty `implementation` is the automatic choice."""
    workload = importlib.import_module(workloads).GROUPS[group][int(index)]
    result = compile_workload(workload, TARGETS[target], implementation or None)
    Path(output).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
