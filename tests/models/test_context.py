"""What the model hands down to its mixers, and what it takes from them beside their outputs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.variables import Buffer
from jaxzoo.mixers import AttentionConfig, GatedShortConvConfig
from jaxzoo.models import LanguageModel
from jaxzoo.models.blueprint import make_blueprint, split_variables
from jaxzoo.ops.segments import position_in_segment
from tests.mixers.outside import AverageConfig, SignedTokens, SignedTokensConfig
from tests.models.hybrids import hybrid_config, make_model, random_tokens

assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
SIGNED = {"pattern": (SignedTokensConfig(noise=0.1), GatedShortConvConfig()), "n_layers": 5}


def test_packed_documents_equal_the_documents_alone():
    """Kills a mixer that is not told of the documents, and learned positions that run on across a boundary."""
    config = hybrid_config(max_positions=12)
    model, tokens = make_model(config), random_tokens(config)
    segment_ids = jnp.asarray([[5] * 3 + [2] * 8, [1] * 6 + [0] * 4 + [3]], jnp.int32)
    packed = nnx.jit(lambda model: model(tokens, segment_ids=segment_ids))(model)
    alone = nnx.jit(LanguageModel.__call__)
    for row, start, stop in ((0, 0, 3), (0, 3, 11), (1, 0, 6), (1, 6, 10), (1, 10, 11)):
        expected = alone(model, jnp.roll(tokens[row : row + 1], -start, axis=1))[0, : stop - start]
        assert_close(packed[row, start:stop], expected)


def test_position_in_segment():
    """Kills a count that does not restart, restarts one late, or takes a returning id for the same document."""
    ids = jnp.asarray([[4, 4, 4, 1, 1, 4], [0, 1, 2, 2, 2, 2]], jnp.int32)
    np.testing.assert_array_equal(position_in_segment(ids), [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3]])


def test_documents_that_a_mixer_would_mix_up_are_refused():
    """Kills a model in which one of many mixers lets documents leak."""
    model = make_model(hybrid_config(pattern=(GatedShortConvConfig(), AverageConfig()), n_layers=2))
    tokens = random_tokens(model.config)
    with pytest.raises(ValueError, match="Average does not honour segment_ids"):
        model(tokens, segment_ids=jnp.zeros_like(tokens))


def test_losses_are_weighted_and_summed_over_layers():
    """Kills a weight that is ignored, a term of one repeat of a scan only, and a mean over layers instead of a sum."""
    model, tokens = make_model(hybrid_config(**SIGNED)), random_tokens(hybrid_config(**SIGNED))
    double = dataclasses.replace(SIGNED["pattern"][0], size_weight=1.0)
    heavy = nnx.merge(
        make_blueprint(hybrid_config(**{**SIGNED, "pattern": (double, GatedShortConvConfig())})).graph,
        *map(nnx.State, split_variables(model)),
    )
    run = nnx.jit(LanguageModel.features_with_losses)
    features, losses = run(model, tokens)
    assert losses.keys() == {"size"}
    np.testing.assert_allclose(run(heavy, tokens)[1]["size"], 2 * losses["size"], rtol=1e-6)
    np.testing.assert_array_equal(features, nnx.jit(LanguageModel.features)(model, tokens))

    terms = []
    flat, original = model.unstacked(), SignedTokens.with_losses

    def record(self, x, context):
        y, losses = original(self, x, context)
        terms.append(0.5 * losses["size"])
        return y, losses

    with pytest.MonkeyPatch.context() as patch, jax.disable_jit():
        patch.setattr(SignedTokens, "with_losses", record)
        _, again = flat.features_with_losses(tokens)
    assert len(terms) == 3
    np.testing.assert_allclose([sum(terms), again["size"]], [losses["size"]] * 2, rtol=1e-5)


def test_every_layer_has_noise_of_its_own():
    """Kills a key that repeats share, noise without a key, and noise that the key does not fix."""
    pattern = (SignedTokensConfig(noise=0.1),)
    model = make_model(hybrid_config(pattern=pattern, n_layers=3))
    tokens, draws = random_tokens(model.config), []
    run = nnx.jit(LanguageModel.__call__)
    first, again, other = (run(model, tokens, key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    assert np.abs(first - run(model, tokens)).max() > 1e-3
    original = SignedTokens.with_losses

    def record(self, x, context):
        draws.append(tuple(np.asarray(jax.random.key_data(context.key)).tolist()))
        return original(self, x, context)

    with pytest.MonkeyPatch.context() as patch, jax.disable_jit():
        patch.setattr(SignedTokens, "with_losses", record)
        model(tokens, key=jax.random.key(7))
    assert len(set(draws)) == 3


def test_what_a_mixer_sows_is_refused(monkeypatch):
    """Kills a loss or a metric that a mixer hands out in Flax's own way, and that nobody would ever see."""

    def sow(self, x, context):
        self.entropy = nnx.Intermediate(x.mean())  # as `nnx.Module.sow` does
        return x, {}

    monkeypatch.setattr(SignedTokens, "with_losses", sow)
    model = make_model(hybrid_config(pattern=(SignedTokensConfig(),), n_layers=1))
    with pytest.raises(ValueError, match="SignedTokens leaves 'entropy' in itself, which nothing reads"):
        model(random_tokens(model.config))


def test_a_term_without_a_weight_is_refused(monkeypatch):
    """Kills a term that is misspelt and never counts."""
    monkeypatch.setattr(SignedTokens, "with_losses", lambda self, x, context: (x, {"sise": x.mean()}))
    model = make_model(hybrid_config(pattern=(SignedTokensConfig(),), n_layers=1))
    with pytest.raises(ValueError, match=r"SignedTokens\.with_losses: 'sise' must have a weight"):
        model.features_with_losses(random_tokens(model.config))


def test_buffers_are_variables_of_their_own():
    """Kills a buffer among the parameters, one that is lost on the way, and layers that share one."""
    config = hybrid_config(**SIGNED)
    model, blueprint = LanguageModel(config, rngs=nnx.Rngs(0)), make_blueprint(config)
    variables = split_variables(model)
    assert jax.tree.structure(variables) == jax.tree.structure(blueprint.shapes)
    (stacked, alone) = jax.tree.leaves(variables.buffers)
    assert (stacked.shape, alone.shape) == ((2, 13, 8), (13, 8))
    assert set(np.unique(np.asarray(stacked))) == {-1.0, 1.0}
    assert np.any(np.asarray(stacked[0] != stacked[1]))
    tokens = random_tokens(config)
    np.testing.assert_array_equal(blueprint.model(variables)(tokens), model(tokens))
    assert_close(model.unstacked()(tokens), model(tokens))


def test_variables_of_other_kinds_are_named(monkeypatch):
    """Kills a variable that no checkpoint would hold."""

    def with_counter(self, config, *, rngs):
        original(self, config, rngs=rngs)
        self.counter = nnx.BatchStat(jnp.zeros(()))

    original = SignedTokens.__init__
    monkeypatch.setattr(SignedTokens, "__init__", with_counter)
    with pytest.raises(ValueError, match="variable stacks/0/blocks/0/mixer/counter is of kind BatchStat"):
        make_blueprint(hybrid_config(pattern=(SignedTokensConfig(),), n_layers=1))


def test_unstacked_equals_scanned():
    """Kills a layer out of its order, or a repeat's slice of another repeat."""
    config = hybrid_config(pattern=(AttentionConfig(n_heads=2), GatedShortConvConfig()), n_layers=5)
    model, tokens = make_model(config), random_tokens(config)
    flat = model.unstacked()
    assert [stack.repeats for stack in flat.stacks] == [1] * 5
    assert not nnx.to_flat_state(nnx.state(flat, Buffer))
    assert_close(flat(tokens), model(tokens))
