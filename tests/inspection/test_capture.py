"""Captured values against float64. Kills: a value of another layer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxzoo
from jaxzoo.data.base import Batch
from jaxzoo.inspection.capture import laid_open
from jaxzoo.inspection.picture import look
from jaxzoo.mixers import AttentionConfig, TaylorLinearAttentionConfig
from jaxzoo.models.blueprint import make_blueprint, split_variables
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig
from jaxzoo.ops.delta_rule import delta_rule
from jaxzoo.ops.linear_attention import linear_attention

T = 9
TOKENS = np.random.default_rng(0).integers(32, size=(2, T), dtype=np.int32)


@pytest.fixture(scope="module")
def model():
    """Two scanned periods of attention and Taylor linear attention, rematerialised."""
    config = LanguageModelConfig(
        d_model=8,
        n_layers=4,
        vocab_size=32,
        pattern=(AttentionConfig(n_heads=2), TaylorLinearAttentionConfig(n_heads=2, feature_dim=3, chunk_size=4)),
        init_std=0.4,
        remat="everything",
    )
    blueprint = make_blueprint(config)
    variables = jax.jit(lambda: split_variables(LanguageModel(config, rngs=nnx.Rngs(0))))()
    return blueprint.model(variables)


@pytest.fixture(scope="module")
def captured(model):
    names = ("layers.*.mixer.in", "layers.*.mixer.scores", "layers.1.mixer.*", "layers.*.out", "embedded")
    return jax.tree.map(np.asarray, jax.jit(jaxzoo.capture(model, *names))(TOKENS))


def heads(x, n):
    return np.asarray(x, np.float64).reshape(*x.shape[:2], n, -1)


@pytest.mark.full
def test_scores_are_the_weights_of_the_equations(model, captured):
    """Kills: a transposed matrix, a wrong layer's name, a normaliser left out; the result is that of the model."""
    logits, seen = captured
    np.testing.assert_allclose(logits, jax.jit(model)(TOKENS), atol=1e-5)
    visible = np.tril(np.ones((T, T)))
    for layer, n in ((0, 2), (1, 2), (3, 2)):
        mixer = laid_open(model).stacks[layer].blocks[0].mixer
        x = seen[f"layers.{layer}.mixer.in"]
        if layer == 0:
            q, k, _ = mixer._project(jnp.asarray(x), jnp.arange(T)[None])
            scores = np.einsum("bthk,bshk->bhts", heads(q, n), heads(k, n)) / np.sqrt(4)
            weights = np.exp(scores) * visible
        else:
            q, k = (project(jnp.asarray(x)) for project in (mixer.q_proj, mixer.k_proj))
            scores = np.einsum("bthk,bshk->bhts", heads(q, n), heads(k, n)) / np.sqrt(3)
            weights = (1 + scores + scores**2 / 2) * visible
        expected = weights / weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(seen[f"layers.{layer}.mixer.scores"], expected, atol=1e-5)


@pytest.mark.slow
def test_a_replacement_reaches_everything_after_it(model, captured):
    """Kills: a replacement of the wrong layer, one that is recorded but not used, and gradients that pass it by."""
    logits, seen = captured

    @jax.jit
    def run(kept):
        patched, _ = jaxzoo.capture(model, replace={"layers.3.out": kept})(np.flip(TOKENS, axis=0))
        zeroed = jaxzoo.capture(model, "layers.2.*out", replace={"layers.2.m*.out": jnp.zeros_like})(TOKENS)

        def loss(scale):
            return jaxzoo.capture(model, replace={"layers.0.out": lambda x: scale * x})(TOKENS)[0].std()

        rows = jax.vmap(lambda row: jaxzoo.capture(model, "layers.1.out")(row[None])[1]["layers.1.out"][0])(TOKENS)
        around = jax.lax.map(loss, jnp.array([0.99, 1.01]))
        return patched, zeroed, jax.grad(loss)(1.0), (around[1] - around[0]) / 0.02, rows

    patched, (zeroed, again), gradient, difference, rows = run(seen["layers.3.out"])
    np.testing.assert_allclose(patched, logits, atol=1e-5)
    np.testing.assert_array_equal(again["layers.2.mixer.out"], 0)
    np.testing.assert_allclose(again["layers.2.out"], seen["layers.1.out"], atol=1e-5)
    assert np.abs(zeroed - logits).max() > 1e-3
    np.testing.assert_allclose(gradient, difference, rtol=2e-2)
    np.testing.assert_allclose(rows, seen["layers.1.out"], atol=1e-5)


def test_scores_of_recurrences_are_those_of_the_recurrence():
    """Kills: scores without the decay, and a delta rule's without the removal of what later keys overwrite."""
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 1, T, 1, 3)).astype(np.float32)
    v, log_decay = np.ones((1, T, 1, 2), np.float32), -rng.uniform(size=(1, T, 1)).astype(np.float32)
    beta = rng.uniform(size=(1, T, 1)).astype(np.float32)
    for op, strength in ((linear_attention, None), (delta_rule, beta)):
        extra = {} if strength is None else {"beta": strength}
        run = jax.jit(jaxzoo.capture(lambda op=op, extra=extra: op(q, k, v, log_decay=log_decay, **extra), "scores"))
        state, expected = np.zeros((3, T)), []
        for t in range(T):
            key, unit = k[0, t, 0].astype(np.float64), np.eye(T)[t]
            state = np.exp(log_decay[0, t, 0]) * state
            written = unit if strength is None else beta[0, t, 0] * (unit - key @ state)
            state = state + np.outer(key, written)
            expected.append(q[0, t, 0] @ state)
        np.testing.assert_allclose(run()[1]["scores"][0, 0], expected, atol=1e-5)


@pytest.mark.full
def test_a_row_of_several_documents_is_drawn_as_the_model_reads_it(model):
    """Kills: a picture of a model that looks into the document before, or answers that are held there; an error that
    does not say why data with pooled answers have no picture."""
    segment_ids = jnp.asarray(np.repeat([[0, 1]], [4, 5], axis=1).astype(np.int32))
    tokens = jnp.asarray(np.concatenate([TOKENS[:1, :4], TOKENS[:1, :5]], axis=1))
    batch = Batch(tokens=tokens, targets=jnp.roll(tokens, -1, axis=1), segment_ids=segment_ids)
    seen = look(model, batch)
    for _, heads in seen.maps.values():
        assert np.abs(heads[:, 4:, :4]).max() == 0
        assert np.abs(heads[:, 5:, 4:]).max() > 0
    assert not seen.norms
    logits = np.asarray(jax.jit(model)(tokens, segment_ids=segment_ids)[0], np.float64)
    for query in seen.queries:
        wanted = np.exp(logits[query.position]) / np.exp(logits[query.position]).sum()
        np.testing.assert_allclose(query.probability, wanted[query.target], rtol=1e-4)
        assert all(source >= 4 for source in query.sources) or query.position < 4
    one = dataclasses.replace(batch, segment_ids=jnp.ones_like(segment_ids))
    assert look(model, one).norms
    with pytest.raises(ValueError, match="read from a mean of features"):
        look(model, dataclasses.replace(batch, segment_ids=None, targets=jnp.ones((1, 1)), pooled=jnp.array([T])))
