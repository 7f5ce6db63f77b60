"""Training on a sequence mesh axis. Kills: losses that differ from those of one device."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jaxzoo.mixers import MIXERS, BigBirdConfig
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.train.session import Session
from tests.pallas_kernels.shared import needs_eight_devices

pytestmark = needs_eight_devices
MESHES = {
    "sequence 2": {"data": 1, "sequence": 2},
    "sequence 4": {"data": 1, "sequence": 4},
    "sequence 8": {"data": 1, "sequence": 8},
    "data": {"data": 8},
    "fsdp": {"data": 1, "fsdp": 8},
    "tensor": {"data": 1, "tensor": 2},
    "data x fsdp x tensor": {"data": 2, "fsdp": 2, "tensor": 2},
    "fsdp x sequence x tensor": {"data": 1, "fsdp": 2, "sequence": 2, "tensor": 2},
}
MIXED = "fsdp x sequence x tensor"
QUICK = [("based", MIXED)]
SLOW = [(name, mesh) for name in ("based", *MIXERS) for mesh in MESHES]
STEPS = 3


def with_mixer(config, name):
    """The model of `config` with two layers of a mixer, or as it is ("based")."""
    if name != "based":
        mixer = MIXERS[name].tiny()
        heads = {"n_heads": 2, "n_kv_heads": None, "head_dim": 8}
        fields = {field.name for field in dataclasses.fields(mixer)}
        widths = {"d_model": None, **{key: value for key, value in heads.items() if key in fields}}
        mixer = dataclasses.replace(mixer, **{**widths, **SIZES.get(name, {})})
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, pattern=(mixer,), n_layers=2))
    return config


SIZES = {
    "gated_linear_attention": {"key_width": 8, "value_width": 16},
    "h3": {"head_dim": 4},
    "linear_attention": {"head_dim": None},
    "lin_cat": {"head_dim": None},
    "ret_net": {"value_width": 16},
    "rwkv5_time_mix": {"n_heads": 2, "value_width": 16},
    "taylor_linear_attention": {"head_dim": None},
}


def curve(config, sizes):
    n_devices = int(np.prod(list(sizes.values())))
    session = Session(dataclasses.replace(config, mesh=MeshConfig(**sizes)), devices=jax.devices()[:n_devices])
    with jax.set_mesh(session.mesh):
        state, stream, losses = session.init_state(), session.dataset.train(), []
        for _ in range(STEPS):
            state, metrics = session.update(state, next(stream))
            losses.append((metrics["loss"], metrics["grad_norm"]))
    return np.asarray(losses, np.float64)


@pytest.fixture(scope="module")
def on_one_device(tiny_config):
    return functools.cache(lambda name: curve(with_mixer(tiny_config, name), {"data": 1}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        *(pytest.param(*case, marks=pytest.mark.full) for case in QUICK),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW if case not in QUICK),
    ],
)
def test_losses_are_those_of_one_device(tiny_config, on_one_device, name, mesh):
    """Kills: a loss averaged by device, gradients summed twice or in part, other dropout on a mesh, targets gathered
    from the wrong part of a sequence."""
    config = with_mixer(tiny_config, name)
    refused = "sequence" in mesh and not config.model.layers[0].capabilities.sequence_parallel
    if refused:
        with pytest.raises(ValueError, match=r"cannot shard a sequence over MeshConfig\.sequence"):
            curve(config, MESHES[mesh])
        return
    expected = on_one_device(name)
    assert np.ptp(expected[:, 0]) > 1e-3
    np.testing.assert_allclose(curve(config, MESHES[mesh]), expected, atol=2e-5, rtol=0)


def test_refusals(tiny_config):
    """Kills: a mixer that gathers its sequences in silence, and parts of unequal length."""
    sizes = {"data": 2, "sequence": 4}
    config = dataclasses.replace(tiny_config, mesh=MeshConfig(**sizes))
    big_bird = dataclasses.replace(config.model, pattern=(BigBirdConfig(n_heads=2, block_size=4),))
    with pytest.raises(ValueError, match=r"layer 0: BigBirdConfig cannot .*\.sequence=4 devices; set --mesh"):
        Session(dataclasses.replace(config, model=big_bird))
    odd = dataclasses.replace(config, mesh=MeshConfig(data=1, sequence=3))
    with pytest.raises(ValueError, match=r"MeshConfig\.sequence=3 must divide the 16 tokens of .* longest sequence"):
        Session(odd, devices=jax.devices()[:3])
