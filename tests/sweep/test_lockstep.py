"""Runs trained side by side. Kills: a learning rate or state of another run."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxzoo.mixers import MIXERS, BaseConvConfig
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from jaxzoo.sweep import lockstep
from jaxzoo.sweep.lockstep import RunWithRate, SequentialRuns, VmappedRuns
from jaxzoo.train.session import Session
from tests.sweep.small import open_small

RATES, SEEDS = (1e-3, 1e-2, 1e-3), (0, 0, 5)
STEPS = 12
EARLY = 6
"""Steps within which rounding has not grown: at a rate of 1e-2 Hyena multiplies it by about ten a step."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Configs of three runs, and the losses of each when the trainer's own step trains it."""
    folder = tmp_path_factory.mktemp("alone")
    sweep = open_small(folder, STEPS=str(STEPS), RATES="(1e-3, 1e-2)", SEEDS="(0, 5)", MODELS='("attention",)')
    found = {(p["learning_rate"], p["seed"]): task.trained for p, task in sweep.points}
    configs = [found[rate, seed] for rate, seed in zip(RATES, SEEDS, strict=True)]
    return configs, [losses_alone(config) for config in configs]


def losses_alone(config) -> np.ndarray:
    session = Session(config, jax.devices()[:1])
    with jax.set_mesh(session.mesh):
        state, stream, losses = session.init_state(), session.dataset.train(), []
        for _ in range(STEPS):
            state, metrics = session.update(state, next(stream))
            losses.append(float(metrics["loss"]))
    return np.array(losses)


def losses_beside(lanes_of, configs, stop_second_at: int = STEPS, steps: int = STEPS) -> list[list[float]]:
    session = Session(configs[0], jax.devices()[:1])
    with jax.set_mesh(session.mesh):
        states = [session.init_state(config.train.seed) for config in configs]
        lanes = lanes_of(session, states, [config.optimizer.learning_rate for config in configs])
        stream, losses, step = session.dataset.train(), [[] for _ in configs], 0
        while step < steps:
            active = [i for i in range(len(configs)) if i != 1 or step < stop_second_at]
            n_steps = min(lanes.at_once, 5, (stop_second_at if 1 in active else steps) - step, steps - step)
            for fetches in lanes.update([next(stream) for _ in range(n_steps)], active):
                for i, fetch in fetches.items():
                    losses[i].append(fetch()["loss"])
            step += n_steps
    return losses


@pytest.mark.parametrize("lanes_of", [SequentialRuns, VmappedRuns])
def test_lanes_of_one_number(lanes_of, monkeypatch):
    """Kills: a learning rate, state or metric of another run. The state is one number, equal to its loss; a step
    subtracts rate times batch."""

    def step(rated: RunWithRate, batch):
        state = rated.state - rated.peak * jnp.sum(batch)
        return RunWithRate(state, rated.peak), {"loss": state}

    everywhere = NamedSharding(make_mesh(MeshConfig(), jax.devices()[:1]), PartitionSpec())
    monkeypatch.setattr(lockstep, "_rated_step", lambda _: step)
    monkeypatch.setattr(lockstep, "_shardings", lambda _: RunWithRate(everywhere, everywhere))
    session = SimpleNamespace(place=jnp.asarray, updating=lambda step, _: jax.jit(step), everywhere=everywhere)
    lanes = lanes_of(session, [jnp.float32(x) for x in (10, 20, 30)], [0.5, 0.25, 0.125])
    found = [*lanes.update([2.0], [0, 1, 2]), *lanes.update([2.0], [0, 2])]
    expected = [{0: 9.0, 1: 19.5, 2: 29.75}, {0: 8.0, 2: 29.5}]
    if lanes_of is VmappedRuns:  # several steps in a call, and a batch of another shape, which ends a call
        found += lanes.update([4.0, 8.0, np.array([2.0])], [0, 2])
        expected += [{0: 6.0, 2: 29.0}, {0: 2.0, 2: 28.0}, {0: 1.0, 2: 27.75}]
    assert [{i: fetch()["loss"] for i, fetch in each.items()} for each in found] == expected
    assert (float(lanes.state(0)), float(lanes.state(2))) == tuple(expected[-1].values())


@pytest.mark.full
def test_apart_is_alone_bit_for_bit(alone):
    """Kills: a rate or seed that reaches the wrong run, a batch that is drawn twice, buffers that two runs share."""
    configs, expected = alone
    assert not np.array_equal(expected[0], expected[1])
    assert not np.array_equal(expected[0], expected[2])
    np.testing.assert_array_equal(losses_beside(SequentialRuns, configs), expected)


@pytest.mark.full
def test_together_is_alone(alone):
    """Kills: the same in the vectorised step, lanes that mix (clipping by a norm over all runs), metrics of another
    lane where a run has ended."""
    configs, expected = alone
    found = losses_beside(VmappedRuns, configs, stop_second_at=4)
    assert [len(losses) for losses in found] == [STEPS, 4, STEPS]
    for losses, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(losses, wanted[: len(losses)], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MIXERS))
def test_every_mixer_together_is_apart(name, alone):
    """Kills: a mixer that cannot be vectorised, or whose lanes mix."""
    pattern = (BaseConvConfig(n_taps=3), MIXERS[name]())
    sizes = {"pattern": pattern, "n_layers": 2, "d_model": 32}
    configs = [dataclasses.replace(each, model=dataclasses.replace(each.model, **sizes)) for each in alone[0]]
    together, apart = (losses_beside(lanes, configs, steps=EARLY) for lanes in (VmappedRuns, SequentialRuns))
    np.testing.assert_allclose(together, apart, rtol=1e-5)


@pytest.mark.slow
def test_a_run_that_diverges_leaves_the_others_alone(alone):
    """Kills: NaN that spreads from one lane to all."""
    configs, expected = alone
    wild = dataclasses.replace(configs[1].optimizer, learning_rate=1e37)
    configs = [configs[0], dataclasses.replace(configs[1], optimizer=wild), configs[2]]
    first, second, third = losses_beside(VmappedRuns, configs)
    assert not np.isfinite(second[-1])
    np.testing.assert_allclose(first, expected[0], rtol=1e-5)
    np.testing.assert_allclose(third, expected[2], rtol=1e-5)
