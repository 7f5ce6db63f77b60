"""NystromFormer against its equations in float64, head by head; the pseudo-inverse; what it costs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers.attention.nystromformer import NystromFormerConfig, pseudo_inverse
from tests.mixers.moved import moved_mixer
from tests.mixers.refused import assert_refused

D, T = 8, 17


def softmax(scores, masked):
    weights = np.exp(scores) * (np.tri(*scores.shape) if masked else 1)
    return weights / weights.sum(-1, keepdims=True)


def truth(config, p, x):
    """Outputs of one row `(t, d)`."""
    t, width, m = len(x), config.head_width, config.n_landmarks
    masked = config.form == "release"
    q, k, v = (x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0) for name in ("q_proj", "k_proj", "v_proj"))
    ends = np.cumsum([t // m] * (m - t % m) + [t // m + 1] * (t % m))
    heads = []
    for h in range(config.n_heads):
        qh, kh, vh = (y[:, h * width : (h + 1) * width] for y in (q, k, v))
        score = lambda a, b: a @ b.T / np.sqrt(width)  # noqa: E731
        if t <= m:
            y = softmax(score(qh, kh), masked) @ vh
        else:
            q_marks, k_marks = (np.stack([part.mean(0) for part in np.split(z, ends[:-1])]) for z in (qh, kh))
            a = softmax(score(q_marks, k_marks), masked)
            z = a.T / (np.abs(a).sum(0).max() * np.abs(a).sum(1).max())
            for _ in range(config.n_iterations):
                z = z @ (13 * np.eye(m) - a @ z @ (15 * np.eye(m) - a @ z @ (7 * np.eye(m) - a @ z))) / 4
            y = softmax(score(qh, k_marks), masked) @ z @ softmax(score(q_marks, kh), masked) @ vh
        half = config.n_taps // 2
        for a in range(config.n_taps):
            at = np.arange(t) + half - a
            y = y + p["taps"][a, h] * np.where(((at >= 0) & (at < t))[:, None], vh[np.clip(at, 0, t - 1)], 0)
        heads.append(y)
    return np.concatenate(heads, axis=1) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)


def make(**fields):
    return moved_mixer(NystromFormerConfig(d_model=D, **fields))


@pytest.mark.parametrize("form", ["paper", "release"])
@pytest.mark.parametrize(
    "fields",
    [
        {"n_landmarks": 5, "n_heads": 2, "n_taps": 3, "qkv_bias": True, "out_bias": True},
        {"n_landmarks": 4, "n_taps": 0, "n_iterations": 2},
        *(pytest.param({"n_landmarks": n, "n_taps": w}, marks=pytest.mark.slow) for n, w in ((17, 9), (1, 1))),
    ],
)
def test_equation(fields, form):
    """Kills: segments of another length, the last one lost, landmarks of queries for those of keys, an inverse of
    another start, a filter that is shifted, mirrored or of another head, a mask of the wrong matrix."""
    mixer, p = make(**fields, form=form)
    x = 0.5 * np.random.default_rng(0).normal(size=(2, T, D))
    expected = np.stack([truth(mixer.config, p, row) for row in x])
    found = jax.jit(mixer)(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_gradients():
    """Kills a gradient that is lost in the iterations or the means: directional slopes of the float64 truth."""
    mixer, p = make(n_landmarks=5, n_heads=2, n_taps=3)
    rng = np.random.default_rng(3)
    x, dy = 0.5 * rng.normal(size=(1, T, D)), rng.normal(size=(T, D))
    graph, params = nnx.split(mixer)
    loss = lambda params, x: jnp.vdot(nnx.merge(graph, params)(x)[0], jnp.asarray(dy, jnp.float32))  # noqa: E731
    dparams, dx = jax.jit(jax.grad(loss, (0, 1)))(params, jnp.asarray(x, jnp.float32))
    gradients = {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(dparams)} | {"x": dx}
    values = {**p, "x": x}
    for name, found in gradients.items():
        way, eps = rng.normal(size=values[name].shape), 1e-5
        ends = [{**values, name: values[name] + step * way} for step in (eps, -eps)]
        up, down = ((truth(mixer.config, end, end["x"][0]) * dy).sum() for end in ends)
        np.testing.assert_allclose((np.asarray(found) * way).sum(), (up - down) / (2 * eps), rtol=1e-3, atol=1e-3)


def test_pseudo_inverse():
    """Kills a wrong coefficient, which converges elsewhere or not at all: the inverse of a matrix that has one, the
    Moore-Penrose inverse of one that has none, and matrices of a batch apart."""
    rng = np.random.default_rng(0)
    regular = softmax(3 * np.eye(5) + rng.normal(size=(5, 5)), masked=False)
    singular = softmax(np.repeat(rng.normal(size=(1, 5)), 5, axis=0), masked=False)
    found = jax.jit(pseudo_inverse, static_argnums=1)(jnp.asarray(np.stack([regular, singular]), jnp.float32), 6)
    for one, matrix in zip(found, (regular, singular), strict=True):
        np.testing.assert_allclose(one, np.linalg.pinv(matrix), atol=1e-3)


def test_no_array_of_all_pairs():
    """Kills exact attention behind an approximation's name: at 300 tokens no intermediate has 300 x 300 entries."""
    mixer, _ = make(n_landmarks=7)
    program = str(jax.make_jaxpr(jax.grad(lambda x: mixer(x).sum()))(jnp.zeros((1, 300, D))))
    assert "300,7]" in program
    assert "300,300" not in program


@pytest.mark.full
def test_no_tokens_and_nothing_that_streams():
    """Kills a mean over nothing, and a promise of causality."""
    for form in ("paper", "release"):
        mixer, _ = make(form=form)
        assert mixer(jnp.zeros((2, 0, D))).shape == (2, 0, D)
        promised = mixer.config.capabilities
        assert (promised.causal, promised.streams, promised.segments) == (False, False, False)


def test_flops_by_hand():
    """d = 8, 2 heads of 4: four kernels 8 x 8; 64 tokens, 4 landmarks: tokens with landmarks four times, 2 x 4 x 4 a
    head; among landmarks 4 x 4 x 4 twice, and 3 iterations of four products of 4 x 4 x 4; 5 taps over 66 inputs."""
    config = NystromFormerConfig(d_model=8, n_heads=2, n_landmarks=4, n_iterations=3, n_taps=5)
    landmarks = 2 * (2 * 2 * 64 + 3 * 4 * 2 * 64) / 64
    assert config.flops_per_token(64) == 8 * 64 + 2 * 4 * 2 * 16 + landmarks + 8 * 2 * 5 * 66 / 64
    exact = NystromFormerConfig(d_model=8, n_heads=2, n_landmarks=64, n_taps=0)
    assert exact.flops_per_token(16) == 8 * 64 + 4 * 8 * 16


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"n_landmarks": 0}, "n_landmarks=0 must be positive"),
        ({"n_taps": 4}, "n_taps=4 must be odd; or 0, for no convolution"),
        ({"n_heads": 4, "n_kv_heads": 2}, "n_kv_heads=2 must be n_heads=4; or None"),
        ({"form": "causal"}, "form='causal' must be one of 'paper', 'release'"),
        ({"positions": "alibi"}, "positions='alibi' must be one of 'none', 'rotary'"),
    ]
    assert_refused(functools.partial(NystromFormerConfig, d_model=8), cases)
