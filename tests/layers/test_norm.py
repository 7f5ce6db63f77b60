"""The norms against their definition and its derivative in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.norm import norm

EPS = 1e-2


def definition(kind, x, scale, bias):
    """The normed input, and its gradients for a cotangent of the output, by the Jacobian of each row."""
    centre = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    std = np.sqrt(np.square(centre).mean(-1, keepdims=True) + EPS)
    y = scale * centre / std + bias
    d = x.shape[-1]
    of_centre = np.eye(d) - 1 / d if kind == "layer" else np.eye(d)
    rows = centre.reshape(-1, d)
    jacobians = [
        scale[:, None] * (np.eye(d) / s - np.outer(c, c) / (d * s**3)) @ of_centre
        for c, s in zip(rows, std.reshape(-1, 1), strict=True)
    ]
    return y, centre / std, np.stack(jacobians)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_and_its_gradients(kind):
    """Kills: a gradient without the term of the mean or of the variance, of one row alone, or with the scale twice; an
    eps outside the root."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 8)) * rng.uniform(0.01, 3, size=(2, 3, 1)) + rng.normal(size=(2, 3, 1))
    scale, bias = rng.normal(size=8), rng.normal(size=8) if kind == "layer" else np.zeros(8)
    d_y = rng.normal(size=x.shape)
    module = norm(kind, 8, eps=EPS, rngs=nnx.Rngs(0))
    graph, params = nnx.split(module)
    values = {"scale": scale, "bias": bias} if kind == "layer" else {"scale": scale}
    nnx.replace_by_pure_dict(params, jax.tree.map(jnp.float32, values))

    @jax.jit
    def run(params, x):
        y, pull = jax.vjp(lambda params, x: nnx.merge(graph, params)(x), params, x)
        return y, *pull(jnp.float32(d_y))

    y, d_params, d_x = run(params, jnp.float32(x))
    wanted, normed, jacobians = definition(kind, x, scale, bias)
    d_params = nnx.to_pure_dict(d_params)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    expected = np.einsum("rij,ri->rj", jacobians, d_y.reshape(-1, 8)).reshape(x.shape)
    np.testing.assert_allclose(d_x, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(d_params["scale"], (d_y * normed).sum((0, 1)), rtol=1e-4, atol=1e-5)
    if kind == "layer":
        np.testing.assert_allclose(d_params["bias"], d_y.sum((0, 1)), rtol=1e-5, atol=1e-5)
