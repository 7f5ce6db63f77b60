"""MesaNet against exact solutions in float64, token by token, and against public conjugate gradients; its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.linear.mesa_net import MesaNetConfig, MesaNetState
from tests.mixers.float64_truth import compare, sigmoid, softplus, unit
from tests.mixers.moved import quick_rngs


def start(config):
    def empty(p, rows):
        h, width = config.n_heads, config.inner // config.n_heads
        sums = jnp.zeros((rows, h, width, width))
        return MesaNetState(jnp.zeros((rows, config.n_taps - 1, 2 * config.inner)), sums, sums)

    return empty


def truth(config, solve):
    h, width = config.n_heads, config.inner // config.n_heads

    def token(p, x, state):
        rows = len(x)
        projected = jnp.concatenate([x @ p["q_proj.kernel"], x @ p["k_proj.kernel"]], axis=-1)
        window = jnp.concatenate([state.history, projected[:, None]], axis=1)
        y = jnp.einsum("bwd,wd->bd", window[:, ::-1], p["conv.taps"])
        q, k = jnp.split((y * sigmoid(y)).reshape(rows, 2 * h, width), 2, axis=1)
        q, k, v = unit(q), unit(k), (x @ p["v_proj.kernel"]).reshape(rows, h, width)
        decay = sigmoid(x @ p["decay_proj.kernel"] + p["decay_proj.bias"])[..., None, None]
        beta = sigmoid(x @ p["beta_proj.kernel"] + p["beta_proj.bias"])[..., None, None]
        kk = decay * state.kk + beta * k[..., :, None] * k[..., None, :]
        kv = decay * state.kv + beta * k[..., :, None] * v[..., None, :]
        ridge = softplus(p["ridge"]) + config.lambda_bound
        o = jnp.einsum("bhk,bhkv->bhv", solve(kk + ridge[..., None] * jnp.eye(width), q), kv)
        o = o / jnp.sqrt((o**2).mean(-1, keepdims=True) + config.norm_eps) * p["norm.scale"]
        y = o.reshape(rows, -1)
        if config.gate:
            gate = x @ p["gate_proj.kernel"]
            y = y * gate * sigmoid(gate)
        return y @ p["out_proj.kernel"], MesaNetState(window[:, 1:], kk, kv)

    return token


def exact(matrix, right):
    # Of a symmetric matrix; as in the public loop, gradients go to its transpose.
    return jnp.linalg.solve(matrix.swapaxes(-1, -2), right[..., None])[..., 0]


def conjugate_gradients(config):
    """The public loop from x = 0, system by system."""

    def solve(matrix, right):
        x, r, p = jnp.zeros_like(right), right, right
        delta = (r * r).sum(-1, keepdims=True)
        for _ in range(config.n_steps):
            product = jnp.einsum("bhij,bhi->bhj", matrix, p)
            alpha = delta / ((p * product).sum(-1, keepdims=True) + config.eps)
            x, r = x + alpha * p, r - alpha * product
            new = (r * r).sum(-1, keepdims=True)
            p, delta = r + new / (delta + config.eps) * p, new
        return x

    return solve


def positive(state):
    """A state whose kk is a sum of squares, as states are."""
    return state._replace(kk=jnp.einsum("bhij,bhkj->bhik", state.kk, state.kk))


OPTIONS = {"d_model": 7, "n_heads": 2, "head_dim": 4, "n_taps": 3, "gate": True}


def test_equation():
    """Kills: a query that the solution does not replace, a lambda of another head, keys that are not normalized, values
    after a convolution, a beta on one of the two sums, an error in the implicit derivative."""
    config = MesaNetConfig(**OPTIONS, n_steps=8, eps=1e-12)
    compare(config, start(config), truth(config, exact), keep=positive)


@pytest.mark.full
def test_public_conjugate_gradients():
    """Kills an eps in one denominator only, and another first vector: three steps are far from the solution."""
    config = MesaNetConfig(**OPTIONS, n_steps=3, eps=1e-2)
    compare(config, start(config), truth(config, conjugate_gradients(config)), keep=positive, gradients=np.inf)


def test_initialisation_and_errors():
    """Kills a lambda that starts elsewhere than at 1, and a bound above its start."""
    mixer = MesaNetConfig(d_model=6, n_heads=3).build(rngs=quick_rngs())
    np.testing.assert_allclose(jax.nn.softplus(mixer.ridge[...]) + 0.25, 1, rtol=1e-6)
    with pytest.raises(ValueError, match=r"lambda_bound=1.5 must be below 1"):
        MesaNetConfig(d_model=6, lambda_bound=1.5)
