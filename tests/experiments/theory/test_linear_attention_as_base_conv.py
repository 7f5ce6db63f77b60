"""Zoology, H.22, and Based, F.8: RetNet and Taylor attention as BaseConv. Kills: a feature without its factor."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.theory.circuits import compile_channels, schedule
from experiments.theory.linear_attention_as_base_conv import retention, retention_circuit, taylor_attention
from experiments.theory.parameters import apply
from jaxzoo.mixers import RetNetConfig, TaylorLinearAttentionConfig

pytestmark = pytest.mark.full
RNG = np.random.default_rng(0)


def draw(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def ret_net(d):
    config = dataclasses.replace(RetNetConfig.plain(gamma=0.8, d_model=d), init_std=0.5)
    return config.build(rngs=nnx.Rngs(0))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * float(jnp.abs(expected).max()))


def test_ret_net_is_four_layers():
    """Kills: a decay from the wrong row, keys and queries mixed up, pairs (f, j) in another order, a layer per row."""
    layer, u = ret_net(4), draw(2, 33, 4)
    layers = retention(layer, 33)
    assert [mixer.config.d_model for mixer in layers] == [4 * 4 + 2 * 4] * 4
    close(*jax.jit(lambda u: (apply(layers, u), layer(u)))(u))


def test_the_circuit_of_the_proof():
    """Kills: a state without its decay, an output before its state, depth that does not grow, products in sequence."""
    layer = ret_net(2)
    levels = []
    for n in (2, 5):
        circuit, u = retention_circuit(layer, n), draw(3, n, 2)
        expected = jax.jit(lambda u, layer=layer: layer(u))(u).reshape(3, -1)
        np.testing.assert_allclose(circuit(u.reshape(3, -1)), expected, rtol=0, atol=1e-5)
        levels.append(len(schedule(circuit)))
        compiled = compile_channels(circuit)
        assert len(compiled.layers) == 5
    close(jax.jit(compiled.__call__)(u.reshape(3, -1)), expected)
    assert levels == [2 * 2 + 1, 2 * 5 + 1]


def test_taylor_attention_is_six_layers():
    """Kills: a square without its half, the first feature missing, queries with the scale of keys, values misread."""
    config = TaylorLinearAttentionConfig(d_model=5, feature_dim=3, head_dim=2, normalize=False, init_std=0.7)
    layer, u = config.build(rngs=nnx.Rngs(1)), draw(2, 20, 5)
    layers = taylor_attention(layer, 20)
    assert len(layers) == 6
    assert {mixer.config.d_model for mixer in layers} == {2 * 13 + 2 * 9 + 2}
    close(*jax.jit(lambda u: (apply(layers, u), layer(u)))(u))


def test_other_forms_are_refused():
    """Kills: a norm, a gate or a division that is ignored."""
    with pytest.raises(ValueError, match=r"RetNetConfig\.plain"):
        retention(RetNetConfig(d_model=4).build(rngs=nnx.Rngs(0)), 8)
    with pytest.raises(ValueError, match="without normalize"):
        taylor_attention(TaylorLinearAttentionConfig(d_model=4).build(rngs=nnx.Rngs(0)), 8)
