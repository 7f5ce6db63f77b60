"""Context that a model gives to its mixers, and the losses that mixers return."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.variables import Buffer
from jaxzoo.mixers import AttentionConfig, GatedShortConvConfig
from jaxzoo.models.blueprint import make_blueprint, split_variables
from jaxzoo.ops.segments import position_in_segment
from tests.mixers.outside import AverageConfig, SignedTokens, SignedTokensConfig
from tests.models.hybrids import hybrid_config, initialised, make_model, random_tokens, run

assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
SIGNED = {"pattern": (SignedTokensConfig(noise=0.1), GatedShortConvConfig()), "n_layers": 5}


def test_packed_documents_equal_the_documents_alone():
    """Kills a mixer that is not told of the documents, and learned positions that run on across a boundary."""
    pattern = (AttentionConfig(n_heads=2, positions="rotary"), GatedShortConvConfig())
    config = hybrid_config(pattern=pattern, n_layers=5, max_positions=12)
    model, tokens = make_model(config), random_tokens(config)
    segment_ids = jnp.asarray([[5] * 3 + [2] * 8, [1] * 6 + [0] * 4 + [3]], jnp.int32)
    documents = ((0, 0, 3), (0, 3, 11), (1, 0, 6), (1, 6, 10), (1, 10, 11))
    first = np.stack([np.roll(np.asarray(tokens)[row], -start) for row, start, _ in documents])
    packed, alone = nnx.jit(lambda model: (model(tokens, segment_ids=segment_ids), model(first)))(model)
    for (row, start, stop), expected in zip(documents, np.asarray(alone), strict=True):
        assert_close(np.asarray(packed)[row, start:stop], expected[: stop - start])


def test_position_in_segment():
    """Kills a count that does not restart, restarts one late, or takes a returning id for the same document."""
    ids = jnp.asarray([[4, 4, 4, 1, 1, 4], [0, 1, 2, 2, 2, 2]], jnp.int32)
    np.testing.assert_array_equal(jax.jit(position_in_segment)(ids), [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3]])


def test_documents_that_a_mixer_would_mix_up_are_refused():
    """Kills a model in which one of many mixers lets documents leak."""
    model = make_model(hybrid_config(pattern=(GatedShortConvConfig(), AverageConfig()), n_layers=2))
    tokens = random_tokens(model.config)
    with pytest.raises(ValueError, match="Average does not honour segment_ids"):
        jax.eval_shape(lambda: model(tokens, segment_ids=tokens))


def test_losses_are_weighted_and_summed_over_layers():
    """Kills a weight that is ignored, a term of one repeat of a scan only, and a mean over layers instead of a sum."""
    signed = {"pattern": (SignedTokensConfig(noise=0.1),), "n_layers": 3, "mlp": "none"}
    model, tokens = make_model(hybrid_config(**signed)), random_tokens(hybrid_config(**signed))
    double = dataclasses.replace(signed["pattern"][0], size_weight=1.0)
    heavy = nnx.merge(
        make_blueprint(hybrid_config(**{**signed, "pattern": (double,)})).graph,
        *map(nnx.State, split_variables(model)),
    )
    original, terms = SignedTokens.with_losses, []

    def record(self, x, context):
        y, losses = original(self, x, context)
        terms.append(0.5 * losses["size"])
        return y, losses

    @nnx.jit
    def run_in_all_ways(model, heavy):
        found = model.features_with_losses(tokens), heavy.features_with_losses(tokens), model.features(tokens)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SignedTokens, "with_losses", record)
            again = model.unstacked().features_with_losses(tokens)[1]
        return *found, again, terms

    (features, losses), (_, doubled), without_losses, again, terms = run_in_all_ways(model, heavy)
    assert losses.keys() == {"size"}
    np.testing.assert_allclose(doubled["size"], 2 * losses["size"], rtol=1e-6)
    np.testing.assert_array_equal(features, without_losses)
    assert len(terms) == 3
    np.testing.assert_allclose([sum(terms), again["size"]], [losses["size"]] * 2, rtol=1e-5)


@pytest.mark.full
def test_every_layer_has_noise_of_its_own():
    """Kills a key that repeats share, noise without a key, and noise that the key does not fix."""
    pattern = (SignedTokensConfig(noise=0.1),)
    model = make_model(hybrid_config(pattern=pattern, n_layers=3))
    tokens, draws = random_tokens(model.config), []
    first, again, other = (run(model, tokens, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    assert np.abs(first - run(model, tokens)).max() > 1e-3
    original = SignedTokens.with_losses

    def record(self, x, context):
        jax.debug.callback(lambda data: draws.append(tuple(data.tolist())), jax.random.key_data(context.key))
        return original(self, x, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SignedTokens, "with_losses", record)
        jax.block_until_ready(nnx.jit(lambda model: model(tokens, key=jax.random.key(7)))(model))
        jax.effects_barrier()
    assert len(draws) == len(set(draws)) == 3


def test_what_a_mixer_sows_is_refused(monkeypatch):
    """Kills a loss or a metric that a mixer hands out in Flax's own way, and that nobody would ever see."""

    def sow(self, x, context):
        self.entropy = nnx.Intermediate(x.mean())  # as `nnx.Module.sow` does
        return x, {}

    monkeypatch.setattr(SignedTokens, "with_losses", sow)
    model = make_model(hybrid_config(pattern=(SignedTokensConfig(),), n_layers=1))
    with pytest.raises(ValueError, match="SignedTokens leaves 'entropy' in itself, which nothing reads"):
        jax.eval_shape(model, random_tokens(model.config))


def test_a_term_without_a_weight_is_refused(monkeypatch):
    """Kills a term that is misspelt and never counts."""
    monkeypatch.setattr(SignedTokens, "with_losses", lambda self, x, context: (x, {"sise": x.mean()}))
    model = make_model(hybrid_config(pattern=(SignedTokensConfig(),), n_layers=1))
    with pytest.raises(ValueError, match=r"SignedTokens\.with_losses: 'sise' must have a weight"):
        jax.eval_shape(lambda: model.features_with_losses(random_tokens(model.config)))


@pytest.mark.slow
def test_buffers_are_variables_of_their_own():
    """Kills a buffer among the parameters, one that is lost on the way, and layers that share one."""
    config = hybrid_config(**SIGNED)
    model, blueprint = initialised(config), make_blueprint(config)
    variables = split_variables(model)
    assert jax.tree.structure(variables) == jax.tree.structure(blueprint.shapes)
    (stacked, alone) = jax.tree.leaves(variables.buffers)
    assert (stacked.shape, alone.shape) == ((2, 13, 8), (13, 8))
    assert set(np.unique(np.asarray(stacked))) == {-1.0, 1.0}
    assert np.any(np.asarray(stacked[0] != stacked[1]))
    tokens = random_tokens(config)
    np.testing.assert_array_equal(run(blueprint.model(variables), tokens), run(model, tokens))
    assert_close(run(model.unstacked(), tokens), run(model, tokens))


def test_variables_of_other_kinds_are_named(monkeypatch):
    """Kills a variable that no checkpoint would hold."""

    def with_counter(self, config, *, rngs):
        original(self, config, rngs=rngs)
        self.counter = nnx.BatchStat(jnp.zeros(()))

    original = SignedTokens.__init__
    monkeypatch.setattr(SignedTokens, "__init__", with_counter)
    with pytest.raises(ValueError, match="variable stacks/0/blocks/0/mixer/counter is of kind BatchStat"):
        make_blueprint(hybrid_config(pattern=(SignedTokensConfig(),), n_layers=1))


@pytest.mark.slow
def test_unstacked_equals_scanned():
    """Kills a layer out of its order, or a repeat's slice of another repeat."""
    config = hybrid_config(pattern=(AttentionConfig(n_heads=2), GatedShortConvConfig()), n_layers=5)
    model, tokens = make_model(config), random_tokens(config)
    flat = model.unstacked()
    assert [stack.repeats for stack in flat.stacks] == [1] * 5
    assert not nnx.to_flat_state(nnx.state(flat, Buffer))
    assert_close(run(flat, tokens), run(model, tokens))
