"""Selective attention against its equation in float64: what is selected, what it costs, what streams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers.attention.selective_attention import SelectiveAttention, SelectiveAttentionConfig
from jaxzoo.mixers.base import Context
from tests.mixers.attention_truth import attention_truth
from tests.mixers.moved import moved_mixer, quick_rngs
from tests.pallas_kernels.shared import full, slow

D, T = 8, 12
HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qkv_bias": True, "out_bias": True}
TOKENS = np.array([[3, 1, 3, 3, 2, 5, 1, 7, 7, 0, 9, 2], [0, 0, 4, 6, 6, 8, 4, 1, 2, 3, 2, 0]])


def attention(config, p, x):
    return np.stack([attention_truth(config, p, row) for row in x])


def scores(p, x):
    return 1 / (1 + np.exp(-x @ p["select_proj.kernel"][:, 0]))


def largest(values, k):
    """1 at the k largest of each row."""
    return (values > -np.sort(-values, axis=1)[:, k : k + 1]).astype(float)


def make(**fields):
    return moved_mixer(SelectiveAttentionConfig(d_model=D, **fields))


def inputs(t=T):
    return np.random.default_rng(0).normal(size=(2, t, D))


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("fields", [{"n_heads": 1}, HEADS])
def test_learned_selection(fields):
    """Kills: keys selected beside queries, the k smallest, a bias that an unselected token keeps, outputs at the wrong
    tokens, a score that the output forgets, one selection for all rows."""
    mixer, p = make(n_selected=5, **fields)
    x = inputs()
    s = scores(p, x)
    expected = attention(mixer.config, p, x) * (s * largest(s, 5))[..., None]
    close(jax.jit(mixer)(jnp.asarray(x, jnp.float32)), expected)


@pytest.mark.parametrize("n_selected", [5, None])
def test_released_form(n_selected):
    """Kills: a release without its residual, that selects in training, or that rounds sqrt(12) to 3."""
    mixer, p = make(n_selected=n_selected, form="release", n_heads=2)
    x = inputs()
    s, y = scores(p, x), attention(mixer.config, p, x)
    now = jnp.asarray(x, jnp.float32)
    run = jax.jit(mixer)
    close(run(now), x + y * (s * largest(s, n_selected or 4))[..., None])
    close(run(now, Context(key=jax.random.key(0))), x + y * s[..., None])


def test_training_explores():
    """Kills noise that is added to outputs, missing in training, or of another size or deviation: with a key the `k`
    largest of `s + noise * normal(key)` are selected, and their outputs are those of no noise."""
    mixer, p = make(n_selected=5, noise=0.5)
    x = inputs()
    s = scores(p, x)
    expected = attention(mixer.config, p, x) * s[..., None]
    run, others = jax.jit(mixer), 0
    for seed in range(8):
        key = jax.random.key(seed)
        y = np.asarray(run(jnp.asarray(x, jnp.float32), Context(key=key)))
        selected = largest(s + 0.5 * np.asarray(jax.random.normal(key, s.shape)), 5)
        np.testing.assert_array_equal(np.abs(y).max(-1) > 0, selected == 1)
        close(y, expected * selected[..., None])
        others += (selected > largest(s, 5)).sum()
    assert others, "the noise changes the selection"


@pytest.mark.full
@pytest.mark.parametrize(
    ("n_selected", "form"),
    [
        (6, "paper"),
        (6, "release"),
        (None, "paper"),
        full(None, "release"),
        *(slow(n, form) for n in (1, 11) for form in ("paper", "release")),
    ],
)
def test_auxiliary_loss(form, n_selected):
    """Kills: a loss that rewards selecting less than k, a sum for a mean, a mean over rows on the wrong side of max."""
    mixer, p = make(n_selected=n_selected, form=form, excess_weight=0.25)
    x = inputs() * np.array([3.0, 0.5])[:, None, None]  # rows that differ in their excess
    allowed = (np.sqrt(T) if n_selected is None else n_selected) / T
    excess = scores(p, x).mean(1) - allowed
    expected = np.maximum(excess, 0).mean() if form == "paper" else max(excess.mean(), 0)
    y, losses = jax.jit(mixer.with_losses)(np.float32(x))
    np.testing.assert_allclose(losses["excess_selection"], expected, atol=1e-6)
    assert mixer.config.loss_weights == {"excess_selection": 0.25}
    np.testing.assert_allclose(y, jax.jit(mixer)(np.float32(x)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_selected", [5, full(40), *(slow(n) for n in (1, T))])
def test_gradients_of_learned_selection(n_selected):
    """Kills: a gather or scatter whose gradient goes elsewhere, and scores that do not learn. Against the same numbers
    by a mask over all tokens."""
    mixer, p = make(n_selected=n_selected, n_heads=2)
    x, dy = (jnp.asarray(y, jnp.float32) for y in (inputs(), inputs()[:, ::-1]))
    mask = jnp.asarray(largest(scores(p, inputs()), n_selected) if n_selected < T else np.ones((2, T)), jnp.float32)
    config = SelectiveAttentionConfig(d_model=D, n_heads=2, selection="full")
    full = nnx.split(SelectiveAttention(config, rngs=quick_rngs()), nnx.Param, ...)[0]
    graph, params = nnx.split(mixer, nnx.Param)

    def masked(x, params):
        params = dict(params)
        y = nnx.merge(full, nnx.State({name: params[name] for name in params if name != "select_proj"}))(x)
        scores = jax.nn.sigmoid(x @ params["select_proj"]["kernel"][...])
        return jnp.vdot(y * scores * mask[..., None], dy)

    def gathered(x, params):
        return jnp.vdot(nnx.merge(graph, params)(x), dy)

    expected, found = (jax.jit(jax.grad(loss, (0, 1)))(x, params) for loss in (masked, gathered))
    jax.tree.map(lambda one, other: close(one, np.asarray(other), 1e-4), found, expected)


@pytest.mark.full
@pytest.mark.parametrize("selection", ["full", "programmatic"])
def test_full_and_programmatic_selection(selection):
    """Kills a token that is found in itself, in the future or in another row."""
    mixer, p = make(selection=selection, **HEADS)
    x, tokens = inputs(), jnp.asarray(TOKENS, jnp.int32)
    seen = [[any(row[j] == row[i] for j in range(i)) for i in range(T)] for row in TOKENS]
    selected = np.ones((2, T)) if selection == "full" else np.array(seen, float)
    expected = attention(mixer.config, p, x) * selected[..., None]
    now = jnp.asarray(x, jnp.float32)
    close(jax.jit(mixer)(now, Context(tokens=tokens)), expected)


@pytest.mark.slow
def test_random_selection():
    """Kills another share, a selection that depends on the row, or is the same for every seed or in training."""
    mixer, p = make(selection="random", probability=0.4, seed=3)
    x = inputs()
    y = np.asarray(jax.jit(mixer)(jnp.asarray(x, jnp.float32)))
    selected = np.abs(y).max(-1) > 0
    np.testing.assert_array_equal(selected[0], selected[1])
    assert 0 < selected[0].sum() < T
    close(y, attention(mixer.config, p, x) * selected[..., None])
    long = jnp.ones((1, 2000, D))
    shares = []
    for seed, key in ((3, None), (4, None), (3, 0), (3, 1)):
        other, _ = make(selection="random", probability=0.4, seed=seed)
        context = Context() if key is None else Context(key=jax.random.key(key))
        shares.append(np.abs(np.asarray(other(long, context))).max(-1)[0] > 0)
    for i, one in enumerate(shares):
        assert abs(one.mean() - 0.4) < 0.05  # 4.5 standard deviations
        assert all((one != another).mean() > 0.3 for another in shares[:i])


def test_capabilities_say_what_holds():
    """Kills a promise of causality by the learned selection, and one left out by the others."""
    promised = {name: SelectiveAttentionConfig(selection=name).capabilities for name in ("full", "random", "learned")}
    assert [p.causal for p in promised.values()] == [True, True, False]
    assert [p.streams for p in promised.values()] == [True, True, False]
    assert [p.selects for p in promised.values()] == [False, True, True]
