"""Selective attention against its equation in float64: what is selected, what it costs, what streams."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers.attention.selective_attention import SelectiveAttention, SelectiveAttentionConfig
from jaxzoo.mixers.base import Context, state_bytes
from tests.mixers.moved import abstract_mixer, moved_mixer, quick_rngs
from tests.mixers.refused import assert_refused
from tests.pallas_kernels.shared import full, slow

D, T, CAPACITY = 8, 12, 16
HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qkv_bias": True, "out_bias": True}
TOKENS = np.array([[3, 1, 3, 3, 2, 5, 1, 7, 7, 0, 9, 2], [0, 0, 4, 6, 6, 8, 4, 1, 2, 3, 2, 0]])


def attention(config, p, x):
    """Outputs of attention for all tokens, `(b, t, d)`."""
    width, group = config.head_width, config.n_heads // config.kv_heads
    q, k, v = (x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0) for name in ("q_proj", "k_proj", "v_proj"))
    heads = []
    for h in range(config.n_heads):
        mine, shared = (slice(j * width, (j + 1) * width) for j in (h, h // group))
        scores = q[..., mine] @ k[..., shared].swapaxes(1, 2) / np.sqrt(width)
        weights = np.exp(scores) * np.tri(x.shape[1])
        heads.append(weights / weights.sum(-1, keepdims=True) @ v[..., shared])
    return np.concatenate(heads, axis=-1) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)


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


def test_no_array_of_all_pairs():
    """Kills a top-k that is a mask: at 300 tokens and 7 selected, no intermediate has 300 x 300 entries."""
    mixer, _ = make(n_selected=7, n_heads=2)
    x = jnp.zeros((1, 300, D))
    program = jax.make_jaxpr(jax.grad(lambda x: mixer.with_losses(x)[0].sum()))(x)
    assert "300,7" in str(program) or "7,300" in str(program)
    assert "300,300" not in str(program)


def streamed(mixer, x, tokens):
    """Outputs in calls of all lengths, one of them by `step`."""
    state, outputs = mixer.init_state(2, capacity=CAPACITY), []
    for start, stop in ((0, 1), (1, 6), (6, 6), (7, T)):
        if start == 7:
            y, state = mixer.step(x[:, 6], state, Context(tokens=tokens[:, 6]))
            outputs.append(y[:, None])
        y, state = mixer.prefill(x[:, start:stop], state, Context(tokens=tokens[:, start:stop]))
        outputs.append(y)
    return jnp.concatenate(outputs, axis=1)


@pytest.mark.full
@pytest.mark.parametrize("selection", ["full", "programmatic"])
def test_full_and_programmatic_selection(selection):
    """Kills: a token that is found in itself, in the future, in another row or in an unwritten slot (id 0), a last
    appearance in the place of any; at once and streamed."""
    mixer, p = make(selection=selection, **HEADS)
    x, tokens = inputs(), jnp.asarray(TOKENS, jnp.int32)
    seen = [[any(row[j] == row[i] for j in range(i)) for i in range(T)] for row in TOKENS]
    selected = np.ones((2, T)) if selection == "full" else np.array(seen, float)
    expected = attention(mixer.config, p, x) * selected[..., None]
    now = jnp.asarray(x, jnp.float32)
    close(jax.jit(mixer)(now, Context(tokens=tokens)), expected)
    close(jax.jit(lambda x: streamed(mixer, x, tokens))(now), expected)


@pytest.mark.slow
def test_random_selection():
    """Kills: a share that is another, a selection that depends on where calls are cut or on the row, one that is the
    same for every seed, or stays the same in training."""
    mixer, p = make(selection="random", probability=0.4, seed=3)
    x = inputs()
    now, tokens = jnp.asarray(x, jnp.float32), jnp.asarray(TOKENS, jnp.int32)
    y = np.asarray(jax.jit(mixer)(now))
    selected = np.abs(y).max(-1) > 0
    np.testing.assert_array_equal(selected[0], selected[1])
    assert 0 < selected[0].sum() < T
    close(y, attention(mixer.config, p, x) * selected[..., None])
    close(jax.jit(lambda x: streamed(mixer, x, tokens))(now), y)

    long = jnp.ones((1, 2000, D))
    shares = []
    for seed, key in ((3, None), (4, None), (3, 0), (3, 1)):
        other, _ = make(selection="random", probability=0.4, seed=seed)
        context = Context() if key is None else Context(key=jax.random.key(key))
        shares.append(np.abs(np.asarray(other(long, context))).max(-1)[0] > 0)
    for i, one in enumerate(shares):
        assert abs(one.mean() - 0.4) < 0.05  # 4.5 standard deviations
        assert all((one != another).mean() > 0.3 for another in shares[:i])


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["random", "programmatic"])
def test_rows_at_different_positions_and_an_overrun(selection):
    """Kills: ids written at one place for all rows, and the clamped write of a row that runs past the cache."""
    mixer, _ = make(selection=selection, positions="rotary", probability=0.5)
    x, tokens = jnp.asarray(inputs(), jnp.float32), jnp.asarray(TOKENS, jnp.int32)
    full = np.asarray(mixer(x, Context(tokens=tokens)))
    starts, rows = (2, 7), np.arange(2)[:, None]

    def after(row, n):
        own = slice(row, row + 1)
        return mixer.prefill(x[own, :n], mixer.init_state(1, capacity=10), Context(tokens=tokens[own, :n]))[1]

    state = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(after(i, n) for i, n in enumerate(starts)))
    at = np.array(starts)[:, None] + np.arange(5)[None]
    y, state = mixer.prefill(x[rows, at[:, :3]], state, Context(tokens=tokens[rows, at[:, :3]]))
    np.testing.assert_allclose(y, full[rows, at[:, :3]], atol=1e-5 * np.abs(full).max())
    y, _ = mixer.step(x[rows[:, 0], at[:, 3]], state, Context(tokens=tokens[rows[:, 0], at[:, 3]]))
    np.testing.assert_allclose(y[0], full[0, 5], atol=1e-5 * np.abs(full).max())
    assert np.isnan(y[1]).all()


@pytest.mark.slow
def test_no_tokens():
    """Kills a mean over nothing."""
    for form in ("paper", "release"):
        mixer, _ = make(form=form, n_selected=None)
        y, losses = mixer.with_losses(jnp.zeros((2, 0, D)))
        assert y.shape == (2, 0, D)
        assert losses["excess_selection"] == 0


def test_capabilities_say_what_holds():
    """Kills a promise of causality by the learned selection, and one left out by the others."""
    promised = {name: SelectiveAttentionConfig(selection=name).capabilities for name in ("full", "random", "learned")}
    assert [p.causal for p in promised.values()] == [True, True, False]
    assert [p.streams for p in promised.values()] == [True, True, False]
    assert [p.selects for p in promised.values()] == [False, True, True]


def test_state_and_flops_by_hand():
    """16 slots of 2 x 8 floats and an id each, and a position. d = 8, 2 heads of 4: kernels 8 x 8; keys and values of
    all 64 tokens; queries, outputs and their scores with 64 keys, twice, for 16 of them; 8 for the score."""
    config = SelectiveAttentionConfig(d_model=8, n_heads=2, selection="programmatic")
    assert state_bytes(abstract_mixer(config), capacity=16) == 4 * 16 * (16 + 1) + 4
    assert config.flops_per_token(64) == 8 * 64 + 4 * 8 * 64
    learned = SelectiveAttentionConfig(d_model=8, n_heads=2, n_selected=16)
    assert learned.flops_per_token(64) == 4 * 64 + 0.25 * (4 * 64 + 4 * 8 * 64) + 16


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"selection": "some"}, "selection='some' must be one of"),
        ({"selection": "random", "form": "release"}, "form='release' must be 'paper' with selection='random'"),
        ({"n_selected": 0}, "n_selected=0 must be positive"),
        ({"noise": -1.0}, "noise=-1.0 must not be negative"),
        ({"probability": 1.5}, r"probability=1.5 must be in \[0, 1\]"),
        ({"positions": "alibi"}, "positions='alibi' must be one of 'none', 'rotary'"),
    ]
    assert_refused(functools.partial(SelectiveAttentionConfig, d_model=8), cases)


def test_learned_selection_has_no_state():
    """Kills a stream that would select by what it has seen, and say nothing."""
    mixer, _ = make(n_selected=3)
    with pytest.raises(ValueError, match="selection='learned' does not stream; call the mixer on all tokens at once"):
        mixer.init_state(1, capacity=4)
