"""ScatterBrain against its equation in float64, weight by weight; the join of its two parts at extremes; the state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.variables import Buffer
from jaxzoo.mixers.attention.scatter_brain import ScatterBrain, ScatterBrainConfig
from jaxzoo.mixers.base import Context, state_bytes
from tests.mixers.moved import abstract_mixer, assert_computes, moved_mixer, quick_rngs
from tests.mixers.refused import assert_refused

D, T = 12, 41


def truth(config, p, x):
    """Outputs of one document `(t, d)`: a matrix of weights for each head."""
    t, width = len(x), config.head_width
    q, k, v = (x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0) for name in ("q_proj", "k_proj", "v_proj"))
    rows = p["random_features"]
    rows = np.concatenate([rows, -rows]) if config.paired else rows
    i, j = np.indices((t, t))
    heads = []
    for h in range(config.n_heads):
        mine = slice(h * width, (h + 1) * width)
        scaled = [y[:, mine] / width**0.25 for y in (q, k)]
        phi_q, phi_k = (np.exp(y @ rows.T - (y**2).sum(-1, keepdims=True) / 2) / np.sqrt(len(rows)) for y in scaled)
        weights = np.where(i - j < config.window, np.exp(scaled[0] @ scaled[1].T), phi_q @ phi_k.T) * np.tri(t)
        heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, mine])
    return np.concatenate(heads, axis=-1) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)


def make(**fields):
    return moved_mixer(ScatterBrainConfig(d_model=D, **fields))


def inputs(b=2, t=T):
    return 0.5 * np.random.default_rng(0).normal(size=(b, t, D))


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    "fields",
    [
        {"n_heads": 2, "window": 3, "n_features": 8, "qkv_bias": True, "out_bias": True},
        {"n_heads": 3, "window": 1, "n_features": 5, "paired": False},
        pytest.param({"window": 40, "n_features": 4}, marks=pytest.mark.slow),
        pytest.param({"window": 64, "n_features": 4, "head_dim": 5}, marks=pytest.mark.slow),
    ],
)
def test_equation(fields):
    """Kills: a window one off, a token counted in both parts or in none, two normalisers, features without their
    factor, a shift that is taken out and not put back."""
    mixer, p = make(**fields)
    x = inputs()
    expected = np.stack([truth(mixer.config, p, row) for row in x])
    assert_computes(mixer, x, expected)


@pytest.mark.full
def test_documents():
    """Kills a token that leaves the window of its document's successor, and enters its sums."""
    mixer, p = make(n_heads=2, window=3, n_features=6)
    x, lengths = inputs(1), (2, 3, 17, 1, 18)
    expected = np.concatenate([truth(mixer.config, p, part) for part in np.split(x[0], np.cumsum(lengths)[:-1])])
    ids = jnp.asarray(np.repeat([4, 1, 2, 0, 9], lengths)[None], jnp.int32)
    close(jax.jit(mixer)(jnp.asarray(x, jnp.float32), Context(segment_ids=ids))[0], expected)


@pytest.mark.slow
def test_gradients():
    """Kills a gradient that is lost with a shift, or that passes it twice: finite differences of the float64 truth, in
    two directions for each parameter and the inputs, in float32 to 1e-3."""
    mixer, p = make(n_heads=2, window=3, n_features=8)
    x, rng = inputs(1, 12), np.random.default_rng(3)
    dy = rng.normal(size=(12, D))
    graph, params, rest = nnx.split(mixer, nnx.Param, ...)
    loss = lambda params, x: jnp.vdot(nnx.merge(graph, params, rest)(x)[0], jnp.asarray(dy, jnp.float32))  # noqa: E731
    dparams, dx = jax.jit(jax.grad(loss, (0, 1)))(params, jnp.asarray(x, jnp.float32))
    gradients = {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(dparams)}
    for name in (*gradients, "x"):
        start, found = (x, dx) if name == "x" else (p[name], gradients[name])
        for _ in range(2):
            way, eps = rng.normal(size=start.shape), 1e-5

            def at(step, name=name, start=start, way=way):
                moved_to = start + step * way
                y = (
                    truth(mixer.config, p, moved_to[0])
                    if name == "x"
                    else truth(mixer.config, {**p, name: moved_to}, x[0])
                )
                return (y * dy).sum()

            slope = (at(eps) - at(-eps)) / (2 * eps)
            np.testing.assert_allclose((np.asarray(found) * way).sum(), slope, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_rows_at_different_positions():
    """Kills: one slot or one count for the whole batch, and a slot that was never written entering the sums."""
    mixer, p = make(n_heads=2, window=5, n_features=6)
    x, starts, rows = inputs(), (2, 13), np.arange(2)[:, None]
    expected = np.stack([truth(mixer.config, p, row) for row in x])
    prefill, step, now = jax.jit(mixer.prefill), jax.jit(mixer.step), jnp.asarray(x, jnp.float32)
    seen = [prefill(now[i : i + 1, :n], mixer.init_state(1))[1] for i, n in enumerate(starts)]
    state = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *seen)
    at = np.array(starts)[:, None] + np.arange(12)[None]
    y, state = prefill(now[rows, at[:, :7]], state)
    close(y, expected[rows, at[:, :7]])
    for i in range(7, 12):
        y, state = step(now[rows[:, 0], at[:, i]], state)
        close(y, expected[rows[:, 0], at[:, i]])


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 30.0, 1000.0])
def test_extreme_scores_stay_finite(scale):
    """Kills: parts that vanish together (0 / 0), a feature that overflows; values and gradients, in float32 and
    bfloat16, at 2,000 tokens."""
    mixer, _ = make(n_heads=2, window=16, n_features=16)
    for dtype in (jnp.float32, jnp.bfloat16):
        x = jnp.asarray(scale * inputs(1, 2000), dtype)
        y, gradient = jax.jit(jax.value_and_grad(lambda x: mixer(x).astype(jnp.float32).sum()))(x)
        assert np.isfinite(y)
        assert np.isfinite(np.asarray(gradient, np.float32)).all()


@pytest.mark.slow
def test_more_features_come_nearer_to_attention():
    """Kills features that are not those of exp(q.k / sqrt(k)): 32 times the features take the error of the mean weight
    to about a sixth; the window is a single token."""
    x, errors = jnp.asarray(inputs(1, 64), jnp.float32), []
    exact = ScatterBrain(ScatterBrainConfig(d_model=D, window=64, init_std=0.3), rngs=quick_rngs())
    parameters = nnx.state(exact, nnx.Param)
    for n_features in (64, 2048):
        config = ScatterBrainConfig(d_model=D, window=1, n_features=n_features, init_std=0.3)
        mixer = ScatterBrain(config, rngs=quick_rngs(1))
        nnx.update(mixer, parameters)
        errors.append(float(jnp.abs(mixer(x) - exact(x)).mean()))
    assert errors[1] < 0.4 * errors[0]


def test_features_are_a_buffer():
    """Kills random features that the optimizer moves, and a map that is not paired."""
    mixer = ScatterBrain(ScatterBrainConfig(d_model=12, n_heads=2, n_features=10), rngs=quick_rngs())
    assert isinstance(mixer.random_features, Buffer)
    assert mixer.random_features[...].shape == (5, 6)


def test_state_and_flops_by_hand():
    """Released count 2 w d + (d + h) f: 7 keys and values of width 12, and 10 features of 2 heads with 6 values and 1;
    and a position. d = 12: four kernels 12 x 12; at 48 tokens blocks of 16 meet 32 keys, twice; features of q and k,
    2 x 2 x 12 x 10; chunks of 48: 2 heads, scores of 10 features with 7 sums; state written and read."""
    config = ScatterBrainConfig(d_model=12, n_heads=2, window=7, n_features=10)
    assert state_bytes(abstract_mixer(config)) == 4 * (2 * 7 * 12 + (12 + 2) * 10) + 4
    near, far = 8 * 144 + 4 * 12 * 32, 4 * 12 * 10 + 2 * 2 * (48 * (10 + 7) + 2 * 10 * 7)
    assert config.flops_per_token(48) == near + far
    assert config.flops_per_token(7) == 8 * 144 + 4 * 12 * 7


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"window": 0}, "window=0 must be positive"),
        ({"n_features": 5}, "n_features=5 must be even with paired=True"),
        ({"n_heads": 4, "n_kv_heads": 2}, "n_kv_heads=2 must be n_heads=4; or None"),
        ({"positions": "alibi"}, "positions='alibi' must be one of 'none', 'rotary'"),
    ]
    assert_refused(functools.partial(ScatterBrainConfig, d_model=12), cases)
