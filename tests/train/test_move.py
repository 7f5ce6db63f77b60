"""Runs resumed on another mesh. Kills: a shard or moment that is lost."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxzoo.config.config_io import to_json
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.session import Session
from tests.train.test_session import with_pattern

STEPS_A_MESH = 2
TOLERANCE = 1e-5
"""Relative tolerance of a float32 loss near ln 40 = 3.7: sums over devices are taken in another order on each mesh."""


def session_on(config, **sizes) -> Session:
    n = int(np.prod(list(sizes.values())))
    return Session(dataclasses.replace(config, mesh=MeshConfig(**sizes)), devices=jax.devices()[:n])


def bits(state) -> list[bytes]:
    return [x.tobytes() for x in jax.tree.leaves(jax.device_get(state))]


def train_and_save(session, start, checkpoints) -> tuple[list[float], list[bytes]]:
    """Losses of the next steps, and all that is saved after them."""
    state, curve = start.state, []
    for _ in range(STEPS_A_MESH):
        state, metrics = session.update(state, next(start.stream))
        curve.append(float(metrics["loss"]))
    step = start.step + STEPS_A_MESH
    checkpoints.save(step, state, cursor=start.stream.get_state(), config=to_json(session.config))
    return curve, bits(state)


@pytest.fixture(scope="module")
def unmoved(tiny_config):
    """`unmoved(name)`: 8 losses of the run of a model that stays on one device."""

    def run(name):
        session = session_on(with_pattern(tiny_config, name), data=1)
        with jax.set_mesh(session.mesh):
            start = session.begin()
            state, curve = start.state, []
            for _ in range(4 * STEPS_A_MESH):
                state, metrics = session.update(state, next(start.stream))
                curve.append(float(metrics["loss"]))
        return curve

    return run


SMALLER = ({"data": 2, "fsdp": 2, "tensor": 2}, {"data": 1, "fsdp": 2, "tensor": 2}, {"data": 1})
LARGER = ({"data": 1}, {"data": 2, "tensor": 2}, {"data": 1, "fsdp": 8}, {"data": 4, "tensor": 2})
OTHER = ({"data": 8}, {"data": 1, "fsdp": 8}, {"data": 4, "tensor": 2}, {"data": 1, "fsdp": 4, "tensor": 2})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "meshes"),
    [
        ("based", SMALLER[::2]),
        pytest.param("hybrid", SMALLER, marks=pytest.mark.slow),
        *(pytest.param(name, m, marks=pytest.mark.slow) for name in ("hybrid", "gpt-neox") for m in (LARGER, OTHER)),
    ],
)
def test_a_run_that_moves_equals_one_that_stays(name, meshes, tiny_config, unmoved, tmp_path):
    """Kills: a moment or a shard that is misplaced or lost, a cursor that begins again, an array that stays on devices
    of the old mesh; on the mesh of 8 devices, a loss averaged by device or gradients that are summed in part."""
    config, curve, saved = with_pattern(tiny_config, name), [], None
    for sizes in meshes:
        session = session_on(config, **sizes)
        with jax.set_mesh(session.mesh), Checkpoints(tmp_path / "c") as checkpoints:
            start = session.begin(checkpoints)
            assert start.step == len(curve)
            assert saved is None or bits(start.state) == saved
            assert jax.tree.map(lambda x: x.sharding, start.state) == session.state_shardings
            losses, saved = train_and_save(session, start, checkpoints)
            assert session.train_step.n_compiled == 1
        curve += losses
    np.testing.assert_allclose(curve, unmoved(name)[: len(curve)], atol=TOLERANCE, rtol=0)
    assert np.ptp(curve) > 100 * TOLERANCE
