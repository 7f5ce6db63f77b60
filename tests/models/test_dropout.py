import jax
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import GatedShortConvConfig
from jaxzoo.models import block, language_model
from tests.models.hybrids import hybrid_config, make_model, random_tokens, run


def test_dropout_keeps_the_expectation():
    """Kills a missing or doubled 1 / (1 - rate), and a rate taken for the share that is kept."""
    x = np.array([-2.0, 0.5, 3.0], np.float32)
    rows = np.broadcast_to(x[None], (20_000, 3))
    dropped = np.asarray(jax.jit(block.dropout, static_argnums=1)(rows, 0.2, jax.random.key(0)))
    np.testing.assert_allclose(dropped.mean(0), x, rtol=0.02)
    np.testing.assert_allclose((dropped == 0).mean(0), 0.2, atol=0.01)
    np.testing.assert_allclose(np.unique(dropped), [-2.5, 0, 0.625, 3.75])


@pytest.mark.slow
def test_dropout_is_off_without_a_key():
    """Kills dropout at evaluation, and a key that is ignored in training."""
    pattern = (GatedShortConvConfig(),)
    without = make_model(hybrid_config(pattern=pattern))
    model = make_model(hybrid_config(pattern=pattern, embed_dropout=0.3, residual_dropout=0.3))
    tokens = random_tokens(model.config)
    np.testing.assert_array_equal(run(model, tokens), run(without, tokens))
    first, again, other = (run(model, tokens, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.all(np.any(np.asarray(first != other)[..., :13], axis=-1))
    assert np.all(np.any(np.asarray(first != run(model, tokens))[..., :13], axis=-1))


@pytest.mark.parametrize("parallel_residual", [False, pytest.param(True, marks=pytest.mark.full)])
def test_every_branch_of_every_layer_has_its_own_mask(monkeypatch, parallel_residual):
    """Kills a key shared by the repeats of a scan, by two stacks, by mixer and MLP, or with the embedding."""
    keys = []

    def record(x, rate, key):
        jax.debug.callback(lambda data: keys.append((rate, *data.tolist())), jax.random.key_data(key))
        return x

    monkeypatch.setattr(block, "dropout", record)
    monkeypatch.setattr(language_model, "dropout", record)
    pattern = (GatedShortConvConfig(n_taps=2), GatedShortConvConfig())
    rates = {"embed_dropout": 0.25, "residual_dropout": 0.5}
    model = make_model(hybrid_config(pattern=pattern, n_layers=5, parallel_residual=parallel_residual, **rates))
    assert [stack.repeats for stack in model.stacks] == [2, 1]
    tokens = random_tokens(model.config, length=3)
    jax.block_until_ready(nnx.jit(lambda model: model(tokens, key=jax.random.key(7)))(model))
    jax.effects_barrier()
    assert sorted(rate for rate, *_ in keys) == [0.25] + [0.5] * 2 * model.config.n_layers
    assert len({tuple(key) for _, *key in keys}) == len(keys)
