"""Timed programs in JAX: several calls in a row, outs_i = f(inputs_i after outs_{i-1}).

A program is compiled once, checked and then timed. `jax.lax.optimization_barrier` orders the calls, so XLA neither
merges nor overlaps them; every output is returned, so none is removed; outputs go to donated buffers, which contain NaN
before the check and previous outputs after it, so nothing is allocated.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.workload import Workload

COLD_BYTES = 256 * 2**20
"""Bytes that rotating sets should cover: several times the last-level cache."""
MAX_CALLS, MAX_SETS = 8, 32


class Memory(NamedTuple):
    """Bytes; None: unknown."""

    temp: int | None
    peak: int | None


def plan(workload: Workload, platform: str, seeds: int | None = None) -> tuple[int, int]:
    """Numbers of input sets (2 to 32) and of calls in a program (up to 8 small calls on an accelerator)."""
    wanted = math.ceil(COLD_BYTES / max(workload.bytes, 1))
    sets = seeds or min(max(wanted, 2), MAX_SETS)
    calls = 1 if platform == "cpu" or wanted < 2 else min(sets, MAX_CALLS)
    return math.ceil(sets / calls) * calls, calls


def lower(function: Callable, inputs: tuple, calls: int) -> jax.stages.Lowered:
    """Lowers `calls` calls of `function` with inputs of these shapes."""
    function = jax.jit(function)
    abstract = jax.eval_shape(lambda x: x, inputs)
    out = jax.eval_shape(function, *abstract)

    def program(buffers, sets):
        del buffers
        outs = []
        for x in sets:
            if outs:
                x, outs[-1] = jax.lax.optimization_barrier((x, outs[-1]))
            outs.append(function(*x))
        return outs

    return jax.jit(program, donate_argnums=0, keep_unused=True).lower([out] * calls, [abstract] * calls)


class JaxProgram:
    """A program of `calls` calls with its input sets."""

    def __init__(self, compiled: jax.stages.Compiled, sets: list[tuple], calls: int):
        self._compiled = compiled
        self._analysis: Any = compiled.memory_analysis()
        self._sets = [sets[i : i + calls] for i in range(0, len(sets), calls)]
        self._turn = 0
        self._outs: Any = None

    def needed_bytes(self) -> int:
        """Memory beyond the inputs."""
        found = self._analysis
        return 0 if found is None else found.temp_size_in_bytes + found.output_size_in_bytes

    def start(self) -> None:
        """Runs the first program with poisoned buffers."""
        self._turn = 0
        self._outs = jax.tree.map(_poison, self._compiled.out_info)
        self._run()

    def outputs(self, rows: np.ndarray) -> tuple[list[np.ndarray], bool]:
        """Some rows of the leaves of the first call's outputs; whether all outputs are finite."""
        self.start()
        finite = all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(self._outs))
        return [np.asarray(x[rows]) for x in jax.tree.leaves(self._outs[0])], finite

    def batch(self, n: int) -> float:
        """Runs n programs; returns seconds."""
        start = time.perf_counter()
        for _ in range(n):
            self._run()
        jax.block_until_ready(self._outs)
        return time.perf_counter() - start

    def memory(self) -> Memory:
        """Memory of one program."""
        return Memory(*(getattr(self._analysis, f"{name}_in_bytes", None) for name in ("temp_size", "peak_memory")))

    def _run(self):
        self._outs = self._compiled(self._outs, self._sets[self._turn])
        self._turn = (self._turn + 1) % len(self._sets)


def _poison(x: jax.ShapeDtypeStruct) -> jax.Array:
    """Array of NaN, or of the largest integer."""
    return jnp.full(x.shape, jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).max, x.dtype)
