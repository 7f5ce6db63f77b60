"""Griffin's recurrent block against its recurrence in float64; both initialisations; its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers.ssm.rg_lru import RGLRU, RGLRUConfig
from tests.mixers.moved import moved, quick_rngs
from tests.mixers.recurrent_truth import T, check, conv, inputs, sigmoid, softplus

D = 6


def block_diagonal(x, p, name):
    kernel, bias = p[f"{name}.kernel"], p[f"{name}.bias"]
    width = kernel.shape[1]
    blocks = [x[..., i * width : (i + 1) * width] @ kernel[i] + bias[i] for i in range(len(kernel))]
    return np.concatenate(blocks, axis=-1)


def truth(config, p, u):
    line = lambda name: u @ p[f"{name}_proj.kernel"] + p[f"{name}_proj.bias"]  # noqa: E731
    x = conv(line("x"), p["conv.taps"]) + p["conv.bias"]
    gate = line("gate")
    gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    r, i = (sigmoid(block_diagonal(x, p, f"{name}_gate")) for name in ("recurrence", "input"))
    a = np.exp(-config.decay_constant * r * softplus(p["log_decay_rate"]))
    h, rows = np.zeros_like(x[:, 0]), []
    for t in range(T):
        scale = 1.0 if t == 0 and config.form == "release" else np.sqrt(1 - a[:, t] ** 2)
        h = a[:, t] * h + scale * i[:, t] * x[:, t]
        rows.append(h)
    return (gate * np.stack(rows, axis=1)) @ p["out_proj.kernel"] + p["out_proj.bias"]


@pytest.mark.parametrize("form", ["release", pytest.param("paper", marks=pytest.mark.full)])
def test_equation(form):
    """Kills: gates of another block, r for i, a missing square root, a first token that is scaled or that every chunk
    has, a skipped bias; in parallel, and streamed."""
    config = RGLRUConfig(d_model=D, inner_width=8, n_heads=2, n_taps=3, decay_constant=1.5, form=form)
    mixer, p = moved(lambda: RGLRU(config, rngs=quick_rngs()))
    u = inputs(D)
    expected = truth(config, p, u)
    check(mixer, expected, u)
    graph, variables = nnx.split(mixer)

    @jax.jit
    def streamed(variables, x):
        mixer = nnx.merge(graph, variables)
        head, state = mixer.prefill(x[:, :4], mixer.init_state(len(x)))
        now, state = mixer.step(x[:, 4], state)
        return jnp.concatenate([head, now[:, None], mixer.prefill(x[:, 5:], state)[0]], axis=1)

    found = streamed(variables, np.asarray(u, np.float32))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("form", ["paper", "release"])
def test_initial_decays(form):
    """Kills a decay out of [0.9, 0.999]: of a^8 and uniform (paper), of a with a uniform square (release)."""
    mixer = RGLRU(RGLRUConfig(d_model=8, inner_width=2000, n_heads=400, form=form), rngs=quick_rngs())
    rate = softplus(np.asarray(mixer.log_decay_rate[...], np.float64))
    decay = np.exp(-8 * rate) if form == "paper" else np.exp(-rate)
    assert 0.8999 < decay.min() < 0.901
    assert 0.998 < decay.max() < 0.9991
    uniform = decay if form == "paper" else decay**2
    np.testing.assert_allclose(uniform.mean(), (uniform.min() + uniform.max()) / 2, atol=3e-3)
