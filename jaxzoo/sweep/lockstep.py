"""Runs that differ in learning rate and seed only, trained by one compiled program on the same batches.

With `vmap` one call makes several steps of all runs, which keeps a GPU or TPU busy with small models. Otherwise runs
are updated in turn, which is faster on a CPU. The learning rate is data, so that a run does not depend on others.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxzoo.data.base import Batch
from jaxzoo.train.loop import Fetch, host_metrics
from jaxzoo.train.optimizer import make_optimizer, make_schedule
from jaxzoo.train.session import Session
from jaxzoo.train.state import TrainState
from jaxzoo.train.step import Metrics, make_train_step
from jaxzoo.utils.array_typing import Array, Float, Int

STEPS_AT_ONCE = 32
"""Largest number of steps of one call, where runs are vmapped."""


class RunWithRate(NamedTuple):
    """A train state and the peak of its learning rate."""

    state: TrainState
    peak: Float[Array, ""]


class BatchedRuns(NamedTuple):
    """Runs of one call, stacked, and its number of steps."""

    runs: RunWithRate
    n_steps: Int[Array, ""]


class SequentialRuns:
    """Updates the active runs in turn; takes first states, which are donated, and peak learning rates."""

    at_once: int = 1

    def __init__(self, session: Session, states: Sequence[TrainState], rates: Sequence[float]):
        self._session = session
        self._step = session.updating(_rated_step(session), _shardings(session))
        self.replace(states, rates)

    def replace(self, states: Sequence[TrainState], rates: Sequence[float]) -> None:
        """Replaces the runs by others, which share the compiled program."""
        self._runs = [RunWithRate(state, jnp.float32(rate)) for state, rate in zip(states, rates, strict=True)]

    def update(self, batches: Sequence[Batch], active: Sequence[int]) -> list[dict[int, Fetch]]:
        """Makes a step of the active runs on each batch; returns functions that fetch the metrics, by step and run."""
        (batch,) = batches
        placed = self._session.place(batch)
        found: dict[int, Fetch] = {}
        for i in active:
            self._runs[i], metrics = self._step(self._runs[i], placed)
            found[i] = functools.partial(host_metrics, metrics)
        return [found]

    def state(self, i: int) -> TrainState:
        return self._runs[i].state


class VmappedRuns:
    """Updates all runs in one call, also runs that have ended, whose state is not read."""

    at_once: int = STEPS_AT_ONCE

    def __init__(self, session: Session, states: Sequence[TrainState], rates: Sequence[float]):
        self._session = session
        shardings = jax.tree.map(lambda s: NamedSharding(s.mesh, PartitionSpec(None, *s.spec)), _shardings(session))
        runs = RunWithRate(jax.tree.map(lambda *xs: jnp.stack(xs), *states), jnp.asarray(rates, jnp.float32))
        self._runs = jax.device_put(runs, shardings)
        step = jax.vmap(_rated_step(session), in_axes=(0, None))
        everywhere = cast(Any, session.everywhere)
        self._steps: Callable[..., Any] = session.updating(_several(step), BatchedRuns(shardings, everywhere))

    def update(self, batches: Sequence[Batch], active: Sequence[int]) -> list[dict[int, Fetch]]:
        """Makes a step of all runs on each batch; the metrics of one call are fetched at once."""
        found: list[dict[int, Fetch]] = []
        for _, alike in itertools.groupby(batches, key=lambda batch: [np.shape(x) for x in jax.tree.leaves(batch)]):
            placed = [self._session.place(batch) for batch in alike]
            lanes = BatchedRuns(self._runs, jnp.int32(len(placed)))
            unread = placed[-1:] * (STEPS_AT_ONCE - len(placed))
            (self._runs, _), metrics = self._steps(lanes, (*placed, *unread))
            fetch_all: Callable[[], Any] = functools.cache(functools.partial(jax.device_get, metrics))
            for k in range(len(placed)):
                found.append({i: functools.partial(_lane, fetch_all, k, i) for i in active})
        return found

    def state(self, i: int) -> TrainState:
        return jax.tree.map(lambda x: x[i], self._runs.state)


def _rated_step(session: Session) -> Callable[[RunWithRate, Batch], tuple[RunWithRate, Metrics]]:
    """The train step of the session's experiment at any learning rate."""
    config = session.config

    def step(rated: RunWithRate, batch: Batch) -> tuple[RunWithRate, Metrics]:
        schedule = make_schedule(config.optimizer, config.train.steps, peak=rated.peak)
        optimizer = make_optimizer(config.optimizer, schedule, session.blueprint.traits.params)
        state, metrics = make_train_step(session.blueprint, optimizer, schedule, config.train)(rated.state, batch)
        return RunWithRate(state, rated.peak), metrics

    return step


def _several(
    step: Callable[[RunWithRate, Batch], tuple[RunWithRate, Metrics]],
) -> Callable[..., tuple[BatchedRuns, Metrics]]:
    """The first `n_steps` steps on some batches of one shape, with the metrics of each."""
    step = jax.jit(step)  # traced once, here and in the loop

    def steps(lanes: BatchedRuns, batches: tuple[Batch, ...]) -> tuple[BatchedRuns, Metrics]:
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *batches)
        _, metrics = jax.eval_shape(step, lanes.runs, batches[0])
        kept = jax.tree.map(lambda x: jnp.zeros((len(batches), *x.shape), x.dtype), metrics)

        def body(k: Int[Array, ""], carry: tuple[RunWithRate, Metrics]) -> tuple[RunWithRate, Metrics]:
            batch = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, k, keepdims=False), stacked)
            runs, metrics = step(carry[0], batch)
            return runs, jax.tree.map(lambda xs, x: xs.at[k].set(x), carry[1], metrics)

        runs, kept = jax.lax.fori_loop(0, lanes.n_steps, body, (lanes.runs, kept))
        return BatchedRuns(runs, lanes.n_steps), kept

    return steps


def _shardings(session: Session) -> RunWithRate:
    """Shardings of a run; the rate is replicated."""
    return RunWithRate(cast(Any, session.state_shardings), cast(Any, session.everywhere))


def _lane(fetch_all: Callable[[], Mapping[str, Any]], k: int, i: int) -> dict[str, float]:
    return {name: float(values[k, i]) for name, values in fetch_all().items()}
