"""The channel mixers against their equations in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.mlp import MLP, default_width
from tests.mixers.moved import moved, quick_rngs

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x * (1 + erf(x / math.sqrt(2))) / 2


GATES = {"swiglu": lambda x: x * sigmoid(x), "geglu": gelu, "glu": sigmoid}


@pytest.mark.parametrize("kind", [*GATES, "gelu"])
@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.full)])
def test_equation(kind, bias):
    """Kills a gate on the wrong branch, GELU by its approximation, a lost bias, one kind in the place of another."""
    mlp, p = moved(lambda: MLP(kind, 5, 7, bias=bias, std=0.8, out_std=0.8, rngs=quick_rngs()))
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)

    def project(name, x):
        return x @ p[f"{name}_proj.kernel"] + p.get(f"{name}_proj.bias", 0.0)

    up = project("up", x.astype(np.float64))
    hidden = GATES[kind](project("gate", x.astype(np.float64))) * up if kind in GATES else gelu(up)
    expected = project("down", hidden)
    assert len(p) == (3 if kind in GATES else 2) * (1 + bias)
    np.testing.assert_allclose(jax.jit(mlp)(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", GATES)
def test_gradients_of_the_joint_matmul(kind, monkeypatch):
    """Kills a wrong VJP of gate and up projection by one matmul, which only GPUs take; truth: autodiff in float64."""
    monkeypatch.setattr("jaxzoo.layers.linear.may_run_on", lambda _: True)
    mlp, p = moved(lambda: MLP(kind, 5, 7, bias=True, std=0.8, out_std=0.8, rngs=quick_rngs()))
    x, dy = np.random.default_rng(1).normal(size=(2, 2, 3, 5)).astype(np.float32)
    gate = {"swiglu": jax.nn.silu, "geglu": lambda x: jax.nn.gelu(x, approximate=False), "glu": jax.nn.sigmoid}[kind]

    def equation(p, x):
        gate_x, up = (x @ p[f"{name}_proj.kernel"] + along(p[f"{name}_proj.bias"]) for name in ("gate", "up"))
        return (gate(gate_x) * up) @ p["down_proj.kernel"] + along(p["down_proj.bias"])

    def along(bias):
        return bias[None, None, :]

    with jax.enable_x64(True):
        truth = {name: jnp.asarray(value, jnp.float64) for name, value in p.items()}
        y, pull_back = jax.vjp(equation, truth, jnp.asarray(x, jnp.float64))
        expected = jax.tree.map(np.asarray, pull_back(jnp.asarray(dy, jnp.float64)))
    graph, parameters = nnx.split(mlp)
    found_y, pull_back = jax.vjp(lambda p, x: nnx.merge(graph, p)(x), parameters, x)
    d_parameters, dx = pull_back(dy)
    found = {".".join(map(str, path)): value[...] for path, value in nnx.to_flat_state(d_parameters)}
    for name, want, got in [("y", y, found_y), ("x", expected[1], dx), *((n, expected[0][n], found[n]) for n in found)]:
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max(), err_msg=name)


@pytest.mark.full
@pytest.mark.parametrize("kind", [*GATES, "gelu"])
def test_the_output_keeps_the_dtype(kind):
    """Kills a gate in float32 that promotes a bfloat16 branch."""
    mlp = lambda x: MLP(kind, 5, 7, bias=True, std=0.8, out_std=0.8, rngs=quick_rngs())(x)  # noqa: E731
    assert jax.eval_shape(mlp, jnp.ones((3, 5), jnp.bfloat16)).dtype == jnp.bfloat16


def test_default_widths():
    """Kills a gated MLP of 4 d, which has half as many parameters again: 8/3 of 1024 is 2730.7, rounded up to 2816."""
    assert [default_width(kind, 1024) for kind in (*GATES, "gelu")] == [2816, 2816, 2816, 4096]
