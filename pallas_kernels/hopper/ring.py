"""Hopper kernels: a ring of chunks in shared memory, filled ahead of time by TMA."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


@dataclasses.dataclass(frozen=True)
class Ring:
    """TMA ring of chunks. loads: (gmem ref, function first row -> index, function slot -> smem)."""

    loads: tuple[tuple[Any, Callable, Callable], ...]
    row: Callable  # scan position -> first row in time
    count: Any  # chunks in this scan, traced
    stages: int
    full: Any
    empty: Any | None  # barriers for arrivals of another warpgroup, or None
    lag: int = 2  # scan positions after which a slot is reloaded, less than stages

    def issue(self, position):
        slot = lax.rem(position, jnp.int32(self.stages))
        row = self.row(position)
        for gmem, index, smem in self.loads:
            plgpu.copy_gmem_to_smem(gmem.at[index(row)], smem(slot), self.full.at[slot])

    def start(self):
        for i in range(self.stages):

            @pl.when(i < self.count)
            def _(i=i):
                self.issue(jnp.int32(i))

    def _freed(self, position):
        """The position `lag` ago, whose slot is free, and whether to reload its slot."""
        free = position - self.lag
        return free, (free >= 0) & (free + self.stages < self.count)

    def await_free(self, position):
        """Waits until the other warpgroup has left the slot of `refill`."""
        free, wanted = self._freed(position)
        if self.empty is not None:

            @pl.when(wanted)
            def _():
                plgpu.barrier_wait(self.empty.at[lax.rem(free, jnp.int32(self.stages))])

    def refill(self, position):
        """Reloads a slot; call `commit_smem` after `await_free` and before this, to order reads before the copies."""
        free, wanted = self._freed(position)

        @pl.when(wanted)
        def _():
            self.issue(free + self.stages)

    def drain(self):
        if self.empty is not None:
            wait_last(self.empty, self.count, self.stages)


def wait_last(barrier, count, depth):
    """Waits for the last arrivals on each of `depth` barriers, which must not end with an unobserved phase."""

    def wait(i, _):
        plgpu.barrier_wait(barrier.at[lax.rem(i, jnp.int32(depth))])

    lax.fori_loop(jnp.maximum(count - depth, 0), count, wait, None)


def scan_order(n: int, reverse: bool) -> Callable:
    """Function: position in a scan -> index of its chunk."""
    return (lambda position: n - 1 - position) if reverse else (lambda position: position)


def pad_tokens(z, chunk: int):
    """Pads (b, t, ...) with zeros to whole chunks."""
    missing = -z.shape[1] % chunk
    return jnp.pad(z, [(0, 0), (0, missing)] + [(0, 0)] * (z.ndim - 2)) if missing else z
