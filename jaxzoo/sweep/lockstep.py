"""Runs that differ in learning rate and seed only, trained in step by one compiled program on the same batches.

With `vmap` one call updates all of them, which fills a GPU or TPU. Without it they are updated one after the other,
which is faster on a CPU. In both the learning rate is data, not a constant of the program, so that the other runs do
not change how a run is computed.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxzoo.array_typing import Array, Float
from jaxzoo.data.base import Batch
from jaxzoo.train.loop import Fetch, host_metrics
from jaxzoo.train.optimizer import make_optimizer, make_schedule
from jaxzoo.train.session import Session
from jaxzoo.train.state import TrainState
from jaxzoo.train.step import Metrics, make_train_step


class Rated(NamedTuple):
    """A train state and the peak of its learning rate."""

    state: TrainState
    peak: Float[Array, ""]


class SequentialRuns:
    """Updates the active runs, one after the other: first states, which are donated, and peak learning rates."""

    def __init__(self, session: Session, states: Sequence[TrainState], rates: Sequence[float]):
        self._session = session
        self._runs = [Rated(state, jnp.float32(rate)) for state, rate in zip(states, rates, strict=True)]
        self._step = session.updating(_rated_step(session), _shardings(session))

    def update(self, batch: Batch, active: Sequence[int]) -> dict[int, Fetch]:
        """Makes one step of the active runs on a batch; returns functions that fetch the metrics of each."""
        placed = self._session.place(batch)
        found: dict[int, Fetch] = {}
        for i in active:
            self._runs[i], metrics = self._step(self._runs[i], placed)
            found[i] = functools.partial(host_metrics, metrics)
        return found

    def state(self, i: int) -> TrainState:
        """The state of a run."""
        return self._runs[i].state


class VmappedRuns:
    """Updates all runs in one call; the arguments are those of `SequentialRuns`.

    A run that is not active any more is updated too, and its state is not read.
    """

    def __init__(self, session: Session, states: Sequence[TrainState], rates: Sequence[float]):
        self._session = session
        shardings = jax.tree.map(lambda s: NamedSharding(s.mesh, PartitionSpec(None, *s.spec)), _shardings(session))
        lanes = Rated(jax.tree.map(lambda *xs: jnp.stack(xs), *states), jnp.asarray(rates, jnp.float32))
        self._runs = jax.device_put(lanes, shardings)
        self._step = session.updating(jax.vmap(_rated_step(session), in_axes=(0, None)), shardings)

    def update(self, batch: Batch, active: Sequence[int]) -> dict[int, Fetch]:
        """Makes one step of all runs on a batch; the metrics of all are fetched at once."""
        self._runs, metrics = self._step(self._runs, self._session.place(batch))
        fetch_all: Callable[[], Any] = functools.cache(lambda: jax.device_get(metrics))
        return {i: functools.partial(_lane, fetch_all, i) for i in active}

    def state(self, i: int) -> TrainState:
        """The state of a run."""
        return jax.tree.map(lambda x: x[i], self._runs.state)


def _rated_step(session: Session) -> Callable[[Rated, Batch], tuple[Rated, Metrics]]:
    """The train step of the session's experiment at any learning rate."""
    config = session.config

    def step(rated: Rated, batch: Batch) -> tuple[Rated, Metrics]:
        schedule = make_schedule(config.optimizer, config.train.steps, peak=rated.peak)
        optimizer = make_optimizer(config.optimizer, schedule, session.blueprint.traits.params)
        state, metrics = make_train_step(session.blueprint, optimizer, schedule, config.train)(rated.state, batch)
        return Rated(state, rated.peak), metrics

    return step


def _shardings(session: Session) -> Rated:
    """Shardings of a run; the rate is replicated."""
    return Rated(cast(Any, session.state_shardings), cast(Any, session.everywhere))


def _lane(fetch_all: Callable[[], Mapping[str, Any]], i: int) -> dict[str, float]:
    return {name: float(values[i]) for name, values in fetch_all().items()}
