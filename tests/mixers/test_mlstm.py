"""The mLSTM layers against their equations in float64, token by token; their initialisation and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.linear.mlstm import MLSTMConfig, MLSTMState
from tests.mixers.float64_truth import compare
from tests.mixers.moved import quick_rngs
from tests.pallas_kernels.shared import slow


def cell(q, k, v, i, f, state, config):
    """One token of one head, as the public recurrent code has it: rows are sequences."""
    c, n, m = state
    log_f = -jnp.log1p(jnp.exp(-f))
    if config.input_gate == "sigmoid":
        later, kept, write = m, jnp.exp(log_f), 1 / (1 + jnp.exp(-i))
    else:
        later = jnp.maximum(log_f + m, i)
        kept, write = jnp.exp(log_f + m - later), jnp.exp(i - later)
    c = kept[:, None, None] * c + write[:, None, None] * k[:, :, None] * v[:, None]
    n = kept[:, None] * n + write[:, None] * k
    q = q / np.sqrt(q.shape[-1])
    least = 1.0 if config.input_gate == "sigmoid" else jnp.exp(-later)
    below = jnp.maximum(jnp.abs((n * q).sum(-1)), least) + config.eps
    return jnp.einsum("bk,bkv->bv", q, c) / below[:, None], (c, n, later)


def start(config):
    heads, keys, values = config.n_heads, config.keys // config.n_heads, config.values // config.n_heads
    inner = config.values if config.form == "v1" else 0

    def empty(p, rows):
        c = jnp.zeros((rows, heads, keys, values))
        return MLSTMState(jnp.zeros((rows, config.n_taps - 1, inner)), c, c[..., 0], c[..., 0, 0])

    return empty


def by_blocks(y, blocks):
    return jnp.concatenate([part @ w for part, w in zip(jnp.split(y, len(blocks), -1), blocks, strict=True)], -1)


def truth(config):
    eps = config.norm_eps or {"v1": 1e-5, "7b": 1e-6}[config.form]
    heads, keys, values = config.n_heads, config.keys // config.n_heads, config.values // config.n_heads

    def token(p, x, state):
        history, c, n, m = state
        if config.form == "v1":
            u, z = jnp.split(x @ p["in_proj.kernel"], 2, axis=-1)
            window = jnp.concatenate([history, u[:, None]], axis=1)
            conv = jnp.einsum("bwd,wd->bd", window[:, ::-1], p["conv.taps"]) + p["conv.bias"]
            conv, history = conv / (1 + jnp.exp(-conv)), window[:, 1:]
            q, k, v = by_blocks(conv, p["q_proj"]), by_blocks(conv, p["k_proj"]), by_blocks(u, p["v_proj"])
            gates = jnp.concatenate([q, k, v], -1) @ p["gates.kernel"] + p["gates.bias"]
        else:
            q, k, v, z = (x @ p[f"{name}_proj.kernel"] for name in ("q", "k", "v", "gate"))
            gates = 15 * jnp.tanh((x @ p["gates.kernel"] + p["gates.bias"]) / 15)
        out, after = [], []
        for h in range(heads):
            own, columns = slice(h * keys, (h + 1) * keys), slice(h * values, (h + 1) * values)
            before = (c[:, h], n[:, h], m[:, h])
            o, new = cell(q[:, own], k[:, own], v[:, columns], gates[:, h], gates[:, heads + h], before, config)
            o = o - o.mean(-1, keepdims=True)
            out.append(o / jnp.sqrt((o**2).mean(-1, keepdims=True) + eps))
            after.append(new)
        c, n, m = (jnp.stack(parts, axis=1) for parts in zip(*after, strict=True))
        y = jnp.concatenate(out, -1) * p["norm_scale"]
        y = (y + p["skip"] * conv) * z if config.form == "v1" else y
        return (y / (1 + jnp.exp(-z))) @ p["out_proj.kernel"], MLSTMState(history, c, n, m)

    return token


@pytest.mark.full
@pytest.mark.parametrize(
    "config",
    [
        MLSTMConfig(d_model=6, n_heads=2, value_width=12, block_width=3, n_taps=3),
        MLSTMConfig(d_model=6, n_heads=2, form="7b", key_width=8, value_width=10),
        slow(MLSTMConfig(d_model=8, n_heads=2, form="7b", input_gate="sigmoid")),
    ],
    ids=lambda config: f"{config.form}-{config.input_gate}",
)
def test_equation(config):
    """Kills: sums that are not rescaled when the maximum grows, a denominator without |.| or the bound 1, a maximum of
    the document before, gates in the wrong order, a skip after the gate, q and k from u."""
    compare(config, start(config), truth(config))


def test_large_gates_stay_finite():
    """Kills an exponential of an input gate without the running maximum."""
    mixer = MLSTMConfig(d_model=8, form="7b", gate_cap=None).build(rngs=quick_rngs())
    mixer.gates.bias[...] = jnp.array([200.0, 3.0])
    y, gradient = jax.value_and_grad(lambda x: mixer(x).sum())(jnp.ones((1, 5, 8)))
    assert np.isfinite(y)
    assert np.isfinite(gradient).all()


def test_initialisation():
    """Kills gates that start open, or that read their input from the start in v1."""
    v1 = MLSTMConfig(d_model=8, n_heads=4).build(rngs=quick_rngs())
    large = MLSTMConfig(d_model=8, n_heads=4, form="7b").build(rngs=quick_rngs())
    np.testing.assert_array_equal(v1.gates.kernel[...], 0)
    np.testing.assert_allclose(v1.gates.bias[4:], [3, 4, 5, 6], rtol=1e-6)
    assert 0 < np.abs(np.asarray(v1.gates.bias[:4])).max() < 0.5
    np.testing.assert_allclose(large.gates.bias[...], [-10] * 4 + [3, 4, 5, 6], rtol=1e-6)


def test_config_errors():
    """Kills widths that v1's one inner width cannot have."""
    with pytest.raises(ValueError, match="key_width=4 must be value_width=16 in form v1"):
        MLSTMConfig(d_model=8, key_width=4)
    with pytest.raises(ValueError, match="block_width=3 must divide value_width=16 in form v1"):
        MLSTMConfig(d_model=8, block_width=3)
