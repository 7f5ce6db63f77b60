"""Outputs in float64, computed on the host ahead of the running case."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor

import numpy as np

from pallas_kernels.verify.case import Case

MOST = 6
"""Maximum number of processes that compute truths."""


class Truths:
    """Truths of `cases`, requested in order; `seed` of their inputs."""

    def __init__(self, cases: Sequence[Case], seed: int):
        count = max(1, min(MOST, (os.cpu_count() or 1) // 2))
        self._cases, self._seed, self._ahead = cases, seed, 2 * count
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_on_the_host)
        self._found: dict[int, Future[list[np.ndarray]]] = {}

    def of(self, index: int) -> list[np.ndarray]:
        """Returns the truth of one case."""
        for following in range(index, min(index + self._ahead, len(self._cases))):
            if following not in self._found:
                self._found[following] = self._pool.submit(_truth, self._cases[following], self._seed)
        return self._found.pop(index).result()

    def close(self) -> None:
        """Ends the processes."""
        self._pool.shutdown(cancel_futures=True)


def _truth(case: Case, seed: int) -> list[np.ndarray]:
    return case.truth(case.inputs(seed))


def _on_the_host() -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")  # only workers use the accelerator
