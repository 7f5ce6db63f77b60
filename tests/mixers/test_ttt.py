"""TTT-Linear and TTT-MLP against gradient steps in float64, token by token, by automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.linear.ttt import TTTConfig, TTTState
from tests.mixers.float64_truth import compare, sigmoid

SIZE = 4


def learned(p, config):
    """Weights that a document begins with."""
    return tuple(p[f"weights.{i}"] for i in range(len(config.shapes)))


def packed(weights):
    return jnp.concatenate([x.reshape(*x.shape[:2], -1) for x in weights], axis=2)


def unpacked(flat, config):
    ends = np.cumsum([i * o for i, o in config.shapes])
    parts = zip(jnp.split(flat, ends[:-1], axis=2), config.shapes, strict=True)
    return tuple(x.reshape(*x.shape[:2], *shape) for x, shape in parts)


def start(config):
    def empty(p, rows):
        change = packed([jnp.zeros((rows, *w.shape)) for w in learned(p, config)])
        return TTTState(change, change, jnp.zeros(rows, jnp.int32))

    return empty


def turn(x, place, base):
    """Adjacent pairs of channels as complex numbers."""
    pairs = x.shape[-1] // 2
    y = (x[0::2] + 1j * x[1::2]) * jnp.exp(1j * place * base ** (-jnp.arange(pairs) / pairs))
    return jnp.stack([y.real, y.imag], axis=-1).reshape(x.shape)


def inner(weights, u):
    out = u @ weights[0] + weights[1][0]
    if len(weights) == 2:
        return out
    hidden = 0.5 * out * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (out + 0.044715 * out**3)))
    return hidden @ weights[2] + weights[3][0]


def truth(config):
    h, n, base = config.n_heads, config.head_width, config.base_lr or {"linear": 1.0, "mlp": 0.1}[config.inner]

    def normed(x, scale, shift):
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * scale + shift

    def head(p, i, x, weights, sums, place):
        """One head of one row."""
        q, k, v = ((x @ p[f"{name}_proj.kernel"])[i * n : (i + 1) * n] for name in "qkv")
        q, k = turn(q, place, config.rotary_base), turn(k, place, config.rotary_base)
        lr = base * sigmoid((x @ p["lr_proj.kernel"] + p["lr_proj.bias"])[i]) / n
        own = lambda out: normed(out, p["inner_scale"][i], p["inner_shift"][i])  # noqa: E731
        loss = lambda weights: ((own(inner(weights, k)) - (v - k)) ** 2).sum() / 2  # noqa: E731
        sums = jax.tree.map(lambda s, g: s + lr * g, sums, jax.grad(loss)(weights))
        tok = jnp.maximum(1 / (place + 1.0) + p["place_scale"][place], 0)
        now = jax.tree.map(lambda w, s: w - tok * s, weights, sums)
        over = place == config.mini_batch - 1
        after = jax.tree.map(lambda w, m: jnp.where(over, m, w), weights, now)
        return q + own(inner(now, q)), after, jax.tree.map(lambda s: jnp.where(over, 0, s), sums)

    def token(p, x, state):
        place = state.position % config.mini_batch
        run = jax.vmap(head, in_axes=(None, None, 0, 0, 0, 0))
        of = lambda tree, i: jax.tree.map(lambda w: w[:, i], tree)  # noqa: E731
        weights = jax.tree.map(jnp.add, unpacked(state.change, config), learned(p, config))
        found = [run(p, i, x, of(weights, i), of(unpacked(state.sums, config), i), place) for i in range(h)]
        z = jnp.concatenate([z for z, _, _ in found], axis=-1)
        after, sums = (jax.tree.map(lambda *y: jnp.stack(y, axis=1), *[f[j] for f in found]) for j in (1, 2))
        change = jax.tree.map(jnp.subtract, after, learned(p, config))
        y = normed(z, p["post_norm.scale"], p["post_norm.bias"])
        if config.gate:
            gate = x @ p["gate_proj.kernel"]
            y = y * 0.5 * gate * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return y @ p["out_proj.kernel"], TTTState(packed(change), packed(sums), state.position + 1)

    return token


@pytest.mark.full
@pytest.mark.parametrize("options", [{"inner": "mlp", "gate": True}, {"inner": "linear", "base_lr": 0.7}])
def test_equation(options):
    """Kills: gradients at other weights than those before the mini-batch, a sum without the token, a place factor
    of the summed token, a target without k, an update by the place factor of another token than the last, places that
    count on after a mini-batch, a mini-batch that goes on in the next document."""
    config = TTTConfig(d_model=8, n_heads=2, mini_batch=SIZE, norm_eps=1e-3, **options)
    compare(config, start(config), truth(config))


def test_config_errors():
    """Kills heads whose last channel has no partner."""
    with pytest.raises(ValueError, match="n_heads=2 leaves heads of odd width 3"):
        TTTConfig(d_model=6, n_heads=2)
