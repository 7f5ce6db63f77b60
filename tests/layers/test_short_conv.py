"""Short convolutions by the kernel's function and by XLA: the same numbers; on a CPU the same program as ever."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers import short_conv as layer
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.mixers import BaseConvConfig, GatedShortConvConfig, LinCATConfig
from jaxzoo.mixers.base import Context
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.short_conv import short_conv

IDS = jnp.int32([[0, 0, 1, 1, 1, 2, 2], [3, 3, 3, 3, 3, 3, 4]])


def by_reference(*_):
    return functools.partial(short_conv, implementation="reference")


@pytest.mark.parametrize(("lfm2", "projection_bias"), [(False, True), (True, True), (True, False)])
def test_mixer_passes_everything_to_the_kernel(lfm2, projection_bias, monkeypatch):
    """Kills: gates or biases that change places; a bias, a SiLU, documents or a history that it does not get."""
    fields = {"d_model": 6, "n_taps": 3, "conv_bias": True, "projection_bias": projection_bias}
    mixer: Any = (GatedShortConvConfig.lfm2 if lfm2 else GatedShortConvConfig)(**fields).build(rngs=nnx.Rngs(0))
    if projection_bias:
        mixer.in_proj.bias[...] = jax.random.normal(jax.random.key(0), mixer.in_proj.bias.shape)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 7, 6)), jnp.float32)
    state = jax.tree.map(lambda z: z + 0.3, mixer.init_state(2))

    def outputs():
        return mixer(x, Context(segment_ids=IDS)), mixer.prefill(x, state, Context())

    expected, offsets = outputs(), []

    def form(*_):
        def call(*arrays, **options):
            offsets.append(options["offsets"] is not None)
            return short_conv(*arrays, **options, implementation="reference")

        return call

    monkeypatch.setattr("jaxzoo.layers.linear.may_run_on", lambda _: True)
    monkeypatch.setattr(layer, "_kernel_form", form)
    found_outputs = outputs()
    assert set(offsets) == {projection_bias}
    for found, wanted in zip(jax.tree.leaves(found_outputs), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        BaseConvConfig(d_model=6, form="release", activation="silu"),
        BaseConvConfig(d_model=6),
        LinCATConfig(d_model=6, n_heads=3, n_taps=3, filters="head"),
    ],
    ids=("release", "paper", "lin_cat"),
)
def test_other_mixers_take_the_kernel(config, monkeypatch):
    """Kills: a gate, bias or SiLU that the kernel does not get, or taps of another head."""
    mixer = config.build(rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 7, 6)), jnp.float32)
    state = jax.tree.map(lambda z: z + 0.3 if z.dtype == jnp.float32 else z, mixer.init_state(2))

    def outputs():
        return mixer(x, Context(segment_ids=IDS)), mixer.prefill(x, state, Context())

    expected, calls = outputs(), []

    def form(*_):
        calls.append(1)
        return by_reference()

    monkeypatch.setattr(layer, "_kernel_form", form)
    for found, wanted in zip(jax.tree.leaves(outputs()), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert calls


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
