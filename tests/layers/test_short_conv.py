"""Short convolutions by the kernel's function and by XLA: the same numbers; on a CPU the same program as ever."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers import short_conv as layer
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.mixers import GatedShortConvConfig
from jaxzoo.mixers.base import Context
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.short_conv import short_conv

IDS = jnp.int32([[0, 0, 1, 1, 1, 2, 2], [3, 3, 3, 3, 3, 3, 4]])


def by_reference(*_):
    return functools.partial(short_conv, implementation="reference")


@pytest.mark.parametrize("lfm2", [False, True])
def test_mixer_passes_everything_to_the_kernel(lfm2, monkeypatch):
    """Kills: gates that change places, a bias, a SiLU, documents or a history that the kernel does not get."""
    config = (GatedShortConvConfig.lfm2 if lfm2 else GatedShortConvConfig)(d_model=6, n_taps=3, conv_bias=True)
    mixer = config.build(rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 7, 6)), jnp.float32)
    state = jax.tree.map(lambda z: z + 0.3, mixer.init_state(2))

    def outputs():
        return mixer(x, Context(segment_ids=IDS)), mixer.prefill(x, state, Context())

    expected = outputs()
    monkeypatch.setattr(layer, "_kernel_form", by_reference)
    for found, wanted in zip(jax.tree.leaves(outputs()), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_plain_channels_reach_the_kernel(monkeypatch):
    """Kills a SiLU on channels without one."""
    conv = ShortConv(6, 4, n_plain=2, rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 7, 6)), jnp.float32)
    expected = conv(x, segment_ids=IDS)
    monkeypatch.setattr(layer, "_kernel_form", by_reference)
    for found, wanted in zip(conv(x, segment_ids=IDS), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_no_kernel_without_a_certificate():
    """Kills a kernel that nobody verified."""
    x, taps = jnp.zeros((2, 7, 6)), jnp.zeros((4, 6))
    assert layer._kernel_form(None, x, taps, 0, None) is None
    for capability in ("8.0", "9.0"):
        with lowering_for("cuda", capability=capability):
            assert layer._kernel_form(None, x, taps, 0, None) is None
