"""Projections by fewer or more matmuls, which only GPUs take, against the plain layers."""

import jax
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.linear import branches, joint_linear, linear
from tests.mixers.moved import quick_rngs

TOLERANCE = 1e-6
"""Of the largest number; float32 sums over 5 or 42 terms in another order."""


class Layers(nnx.Module):
    def __init__(self, bias):
        self.a = linear(5, 6, axes=(None, None), bias=bias, std=0.8, rngs=quick_rngs(0))
        self.b = linear(5, 3, axes=(None, None), bias=bias, std=0.8, rngs=quick_rngs(1))

    def __call__(self, x):
        return (joint_linear(x, self.a, self.b), *branches(x, self.a, 2))


@pytest.mark.parametrize("bias", [False, True])
def test_regrouped_matmuls_are_those_of_the_layers(bias, monkeypatch):
    """Kills branches in another order, a lost bias, the bias of another branch, gradients of one branch alone."""
    graph, parameters = nnx.split(Layers(bias))
    parameters = jax.tree.map(lambda a: a + np.arange(a.size).reshape(a.shape).astype(np.float32) / a.size, parameters)
    x = np.random.default_rng(0).normal(size=(2, 21, 5)).astype(np.float32)

    def outputs_and_gradients():
        y, pull_back = jax.vjp(lambda p, x: nnx.merge(graph, p)(x), parameters, x)
        return y, pull_back(jax.tree.map(np.cos, y))

    plain = outputs_and_gradients()
    monkeypatch.setattr("jaxzoo.layers.linear.may_run_on", lambda _: True)
    assert "optimization_barrier" in str(jax.make_jaxpr(lambda x: nnx.merge(graph, parameters)(x))(x))
    for want, got in zip(jax.tree.leaves(plain), jax.tree.leaves(outputs_and_gradients()), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())
