"""Timed programs of tensors: the calls of a program in a CUDA graph, where they let themselves be captured.

A graph's calls follow each other without a launch from Python, as those of a program in JAX do (`programs.py`).
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from pallas_kernels.benchmark.programs import Memory


class TorchProgram:
    """See `programs.Program`; `note` says why there is no graph, where there is none."""

    def __init__(self, function: Callable, sets: list[tuple], calls: int, *, gradients: bool):
        self.calls = calls
        self.note: str | None = None
        self._sets = [tuple(_tensor(x, gradients) for x in inputs) for inputs in sets]
        self._function = function
        self._turn = 0
        self._cuda = self._sets[0][0].is_cuda
        self._programs: list[Callable[[], Any]] = []
        self._memory = Memory(None, None)

    def outputs(self, rows):
        """Runs twice, so that the outputs that are compared stand where the first, then full of NaN, stood."""
        stale = self._function(*self._sets[0])
        with torch.no_grad():
            for x in jax.tree.leaves(stale):
                x.fill_(float("nan"))
        del stale
        self._count_memory()
        outs = jax.tree.leaves(self._function(*self._sets[0]))
        finite = all(bool(torch.isfinite(x).all()) for x in outs)
        index = torch.as_tensor(rows, device=outs[0].device)
        return [_array(x.detach()[index]) for x in outs], finite

    def batch(self, n):
        programs = self._programs or self._make_programs()
        if not self._cuda:
            start = time.perf_counter()
            self._enqueue(programs, n)
            return time.perf_counter() - start
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._enqueue(programs, n)
        end.record()
        end.synchronize()
        return 1e-3 * start.elapsed_time(end)

    def memory(self):
        return self._memory

    def _enqueue(self, programs, n):
        for _ in range(n):
            programs[self._turn]()
            self._turn = (self._turn + 1) % len(programs)

    def _make_programs(self) -> list[Callable[[], Any]]:
        groups = [self._sets[i : i + self.calls] for i in range(0, len(self._sets), self.calls)]
        eager = [lambda group=group: [self._function(*inputs) for inputs in group][-1] for group in groups]
        self._programs = eager
        if self._cuda:
            try:
                self._programs = [_capture(run) for run in eager]
            except RuntimeError as error:
                self.note = f"launches included, no CUDA graph: {str(error).splitlines()[0]}"
        return self._programs

    def _count_memory(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self._function(*self._sets[0])
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
            self._memory = Memory(peak - before, peak)


def _capture(run: Callable[[], Any]) -> Callable[[], Any]:
    """`run`, three times on another stream, as torch's notes on graphs ask, then as a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # JAX has threads of its own
        run()
    return graph.replay


def _tensor(x: jax.Array, gradients: bool) -> torch.Tensor:
    """A copy of a JAX array on its device."""
    return torch.from_dlpack(jax.block_until_ready(x)).clone().requires_grad_(gradients)


def _array(x: torch.Tensor) -> np.ndarray:
    """In the tensor's dtype, on the host; numpy takes bfloat16 from torch as bits only."""
    x = x.contiguous().cpu()
    return x.view(torch.int16).numpy().view(jnp.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()
