"""Landmark CAT against equation 1 in float64, query by query; its state and cost by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.implicit_filter import position_features
from jaxzoo.mixers import Context, LandmarkCAT, LandmarkCATConfig, state_bytes
from tests.mixers.moved import abstract_mixer, assert_computes, moved_mixer, quick_rngs
from tests.mixers.refused import assert_refused

D, T = 12, 19


def rotated(x):
    """Half-rotation of `(t, k)`."""
    half = x.shape[1] // 2
    angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=1)


def convolved(x, taps):
    """`(t, k)` with as many taps as there are tokens, one at a time."""
    return sum(taps[u] * np.pad(x, ((u, 0), (0, 0)))[: len(x)] for u in range(min(len(taps), len(x))))


def long_taps(config, p, head, t):
    """F_0 .. F_{t-1} of a head of keys."""
    u, size = np.arange(t), config.block_size
    if config.smoothing == "mean":
        return np.where(u < size, 1 / size, 0)
    if config.smoothing == "implicit":
        p = {name.removeprefix("long_filter."): value for name, value in p.items()}
        hidden = np.maximum(position_features(size, 3) @ p["kernel_1"] + p["bias_1"], 0)
        return np.pad(hidden @ p["kernel_2"][:, head] + p["bias_2"][head], (0, max(t - size, 0)))
    rho = np.exp(-np.exp(p["log_rate"][head])) if config.learn_rho else config.rho or np.exp(-1 / size)
    return (1 - rho) * rho**u


def parts_of(config, p, u):
    """Filtered queries, keys and values by head, each `(t, k)`."""
    parts = {}
    for name, letter in (("queries", "q"), ("keys", "k"), ("values", "v")):
        y = (u @ p[f"{letter}_proj.kernel"] + p.get(f"{letter}_proj.bias", 0)).reshape(len(u), -1, config.head_width)
        taps = p.get(f"head_filters.{name}", np.ones((1, y.shape[1])))
        parts[name] = [convolved(y[:, h], taps[:, h]) for h in range(y.shape[1])]
    return parts


def truth(config, p, u):
    """Outputs `(t, d)` of one document."""
    parts, size, width = parts_of(config, p, u), config.block_size, config.head_width
    turn = rotated if config.positions == "rotary" else lambda x: x
    heads = []
    for h, q in enumerate(parts["queries"]):
        g = h * config.kv_heads // config.n_heads
        k, v = parts["keys"][g], parts["values"][g]
        smooth = convolved(k, long_taps(config, p, g, len(u)))
        scores, weights = turn(q) @ turn(k).T / np.sqrt(width), np.zeros((len(u), len(u)))
        for i in range(len(u)):
            own = i // size
            landmarks = np.array([smooth[n * size + size - 1] @ q[i] / np.sqrt(width) for n in range(own)])
            for n in np.argsort(-landmarks)[: config.n_retrieved]:
                share = np.exp(landmarks[n]) / np.exp(landmarks).sum() if config.gate == "softmax" else 1
                weights[i, n * size : (n + 1) * size] = share
            weights[i, own * size : i + 1] = 1
        weights = weights * np.exp(scores - scores.max())
        heads.append(weights @ v / weights.sum(1, keepdims=True))
    return np.concatenate(heads, axis=1) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)


def make(**options):
    return moved_mixer(LandmarkCATConfig(d_model=D, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"block_size": 4}, marks=pytest.mark.full),
        {"block_size": 3, "n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "positions": "rotary", "qkv_bias": True},
        {"block_size": 5, "n_heads": 2, "smoothing": "mean", "n_retrieved": 2, "filter_keys": False, "out_bias": True},
        {"block_size": 4, "n_heads": 3, "n_kv_heads": 3, "smoothing": "implicit", "filter_queries": True, "n_taps": 6},
        {"block_size": 2, "rho": 0.9, "learn_rho": False, "gate": "softmax"},
        pytest.param(
            {"block_size": 3, "learn_rho": False, "filter_values": False, "positions": "rotary"}, marks=pytest.mark.full
        ),
    ],
)
def test_equation(options):
    """Kills: landmarks of rotated keys, a query that meets them rotated, smoothed keys in local attention, the short
    filter after the long one, a rho of the model and not of the head, an option that nothing reads; all at once, and
    in calls that are cut inside blocks and at their borders."""
    mixer, p = make(**options)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = np.stack([truth(mixer.config, p, row) for row in x])

    assert_computes(mixer, x, expected, 2e-5)


@pytest.mark.full
def test_documents_have_blocks_of_their_own():
    """Kills: blocks, landmarks or filters that begin in the document before."""
    mixer, p = make(block_size=3, n_heads=2, positions="rotary")
    x, lengths = np.random.default_rng(0).normal(size=(1, T, D)), (1, 11, 7)
    expected = np.concatenate([truth(mixer.config, p, part) for part in np.split(x[0], np.cumsum(lengths)[:-1])])
    ids = jnp.asarray(np.repeat([4, 1, 2], lengths)[None], jnp.int32)
    found = jax.jit(mixer)(jnp.asarray(x, jnp.float32), Context(segment_ids=ids))[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_a_row_that_runs_past_the_cache():
    """Kills the clamped write of a row beyond its slots, and one row's overrun that spoils the other."""
    mixer, p = make(block_size=4, n_heads=2)
    x = np.random.default_rng(0).normal(size=(2, 10, D))
    now, step = jnp.asarray(x, jnp.float32), jax.jit(mixer.step)
    _, state = mixer.prefill(now[:, :7], mixer.init_state(2, capacity=5))  # 8 slots of two whole blocks
    y, state = step(now[:, 7], state)
    expected = np.stack([truth(mixer.config, p, row) for row in x[:, :8]])[:, 7]
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    y, _ = step(now[:, 8], state._replace(position=jnp.asarray([3, 8], jnp.int32)))
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()


@pytest.mark.parametrize("block_size", [8, 64])
def test_rho_starts_as_in_proposition_2(block_size):
    """Kills: another start than e^(-1/B), taps without their sum of 1, and a carry of another power."""
    mixer = LandmarkCAT(LandmarkCATConfig(d_model=4, n_heads=2, block_size=block_size), rngs=quick_rngs())
    taps, carry = mixer._long_filter()
    rho = np.exp(-1 / block_size)
    np.testing.assert_allclose(taps, np.repeat((1 - rho) * rho ** np.arange(block_size)[:, None], 2, axis=1), rtol=1e-5)
    np.testing.assert_allclose(carry, np.full(2, np.exp(-1)), rtol=1e-6)
    assert not hasattr(LandmarkCAT(LandmarkCATConfig(d_model=4, learn_rho=False), rngs=quick_rngs()), "log_rate")


def test_state_and_flops_by_hand():
    """11 tokens of blocks of 4 are 12 slots of 2 x 12 floats, 3 landmarks of 12, two histories of 2 x 12, a position.
    d = 12, 3 heads of 4: four kernels; 3 taps of keys and values; at 64 tokens 15 landmarks that can be met, made of 60
    keys, own and retrieved blocks of 4. At 3 tokens there is one block of 3."""
    config = LandmarkCATConfig(d_model=12, n_heads=3, block_size=4)
    assert state_bytes(abstract_mixer(config), capacity=11) == 4 * (24 * 12 + 3 * 12 + 4 * 12) + 4
    shared = 2 * 4 * 12**2 + 2 * 3 * 24
    assert config.flops_per_token(64) == shared + 2 * 12 * 15 + 2 * 12 * 60 / 64 + 4 * 12 * (4 + 4)
    assert config.flops_per_token(3) == shared + 4 * 12 * 3


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"block_size": 0}, "block_size=0 must be positive"),
        ({"n_retrieved": 0}, "n_retrieved=0 must be positive"),
        ({"rho": 1.0}, r"rho=1.0 must be in \(0, 1\)"),
        ({"rho": 0.0}, r"rho=0.0 must be in \(0, 1\)"),
        ({"rho": 0.5, "smoothing": "mean"}, "rho=0.5 needs smoothing='exponential'"),
        ({"smoothing": "sum"}, "smoothing='sum' must be one of 'exponential', 'mean', 'implicit'"),
        ({"gate": "hard"}, "gate='hard' must be one of 'straight_through', 'softmax'"),
        ({"positions": "alibi"}, "positions='alibi' must be one of 'none', 'rotary'"),
    ]
    assert_refused(functools.partial(LandmarkCATConfig, d_model=12), cases)


def test_state_errors():
    """Kills a cache of no slots, and a prompt that does not fit and is cut."""
    mixer, _ = make(block_size=4)
    for capacity in (None, 0):
        with pytest.raises(ValueError, match=f"init_state of attention: capacity={capacity} must be positive"):
            mixer.init_state(1, capacity=capacity)
    with pytest.raises(ValueError, match=r"prefill of attention: t=19 must be at most the 12 slots of the cache"):
        mixer.prefill(jnp.zeros((1, T, D)), mixer.init_state(1, capacity=9))
