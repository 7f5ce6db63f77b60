"""Weight-decay masks, learning-rate scales and shardings of variables, for users' optimizers and meshes."""

import jax
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxzoo.layers.variables import learning_rate_scales, shardings, weight_decay_mask
from jaxzoo.mixers import LongConvConfig, Mamba2Config
from tests.mixers.moved import quick_rngs
from tests.pallas_kernels.shared import needs_eight_devices


class Model(nnx.Module):
    """A mixer next to a layer of Flax."""

    def __init__(self, config):
        self.mixer = config.build(rngs=quick_rngs())
        self.linear = nnx.Linear(4, 4, rngs=nnx.Rngs(0))


def by_path(state):
    leaves, _ = jax.tree.flatten_with_path(state)
    return {".".join(str(key.key) for key in path if hasattr(key, "key")): leaf for path, leaf in leaves}


def test_decay_and_rates():
    """Kills a norm or bias that decays, a matrix that does not, a rate that is lost, and a foreign layer that fails."""
    model = Model(Mamba2Config.tiny())
    decays = by_path(weight_decay_mask(model))
    assert decays["linear.kernel"]
    assert decays["mixer.in_proj.kernel"]
    assert not any(value for name, value in decays.items() if name.endswith(("a_log", "dt_bias", "norm.scale")))
    assert {"mixer.a_log", "mixer.dt_bias"} <= decays.keys()
    scales = by_path(learning_rate_scales(Model(LongConvConfig.tiny())))
    assert scales["linear.kernel"] == 1
    assert set(scales.values()) == {1, 1 / 16}


@needs_eight_devices
def test_shardings():
    """Kills heads that are not sharded over `tensor`, an axis that does not divide, and a foreign layer that fails."""
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), devices=jax.devices()[:4])
    model = Model(Mamba2Config(d_model=8, d_state=4, head_dim=4))
    found = by_path(shardings(model, mesh))
    specs = {name: sharding.spec for name, sharding in found.items()}
    assert specs["mixer.out_proj.kernel"][0] in ("tensor", ("tensor",))
    assert all(entry is None for entry in specs["linear.kernel"])
    nnx.update(model, jax.device_put(nnx.state(model), shardings(model, mesh)))
    np.testing.assert_array_equal(model.linear.kernel[...], Model(model.mixer.config).linear.kernel[...])
    assert specs["linear.bias"] == P(None)
