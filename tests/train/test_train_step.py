"""One training step against NumPy. Kills: a loss of unlabelled positions, dropout that differs on resume."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.data.base import Batch
from jaxzoo.evals.validation import make_eval_step, make_target_nats_step
from jaxzoo.models.blueprint import make_blueprint
from jaxzoo.train.cross_entropy import cross_entropy
from jaxzoo.train.loss import score_targets
from jaxzoo.train.optimizer import make_optimizer, make_schedule
from jaxzoo.train.state import init_state
from jaxzoo.train.step import make_train_step
from tests.mixers.test_sequence_parallel import HASTY


def make_step(config):
    """The train step and a state whose parameters, moments and step count are all random."""
    blueprint = make_blueprint(config.model)
    schedule = make_schedule(config.optimizer, config.train.steps)
    optimizer = make_optimizer(config.optimizer, schedule, blueprint.traits.params)

    @functools.partial(jax.jit, compiler_options=HASTY)
    def init(key_data):
        state = init_state(config.model, optimizer, key_data)
        return state._replace(params=jax.tree.map(lambda x: x * 5.0, state.params))

    state = init(jax.random.key_data(jax.random.key(3)))
    return blueprint, make_train_step(blueprint, optimizer, schedule, config.train), state


def recall_batch():
    """Four rows that differ; positions are unsorted, one answer is absent."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 40, (4, 15))
    positions = np.stack([rng.permutation(15)[:3] for _ in range(4)])
    targets = rng.integers(0, 40, (4, 3))
    targets[2, 1] = -100
    arrays = {"tokens": tokens, "positions": positions, "targets": targets}
    return Batch(**{name: jnp.asarray(x, jnp.int32) for name, x in arrays.items()})


def spread(batch):
    """The same labels with one target a position, -100 elsewhere."""
    targets = np.full(batch.tokens.shape, -100, np.int32)
    np.put_along_axis(targets, np.asarray(batch.positions), np.asarray(batch.targets), axis=1)
    return Batch(tokens=batch.tokens, targets=jnp.asarray(targets))


def test_cross_entropy_equals_numpy():
    """Kills: scoring unlabelled positions, an index of -100 that wraps around, a softmax that overflows."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 7)) * 50
    targets = np.array([[1, -100, 6], [0, 3, -100]])
    logits[1, 1, 3] = 400.0
    scores = jax.jit(cross_entropy)(logits.astype(np.float32), targets.astype(np.int32))
    nats, _, hits, labelled = jax.device_get(scores)
    for b, m in np.ndindex(2, 3):
        row, target = logits[b, m], targets[b, m]
        if target == -100:
            assert (nats[b, m], hits[b, m], labelled[b, m]) == (0, False, False)
        else:
            expected = np.log(np.exp(row - row.max()).sum()) + row.max() - row[target]
            np.testing.assert_allclose(nats[b, m], expected, rtol=1e-5, atol=1e-4)
            assert bool(hits[b, m]) == (row.argmax() == target)
            assert labelled[b, m]


def test_a_tie_is_a_miss_unless_the_target_comes_first():
    """Kills: all-equal logits that score an accuracy of 1, and would end a run by --train.stop-at-accuracy."""
    logits = np.zeros((1, 3, 5), np.float32)
    logits[0, 1, [2, 4]] = 1.0
    targets = np.broadcast_to(np.arange(5, dtype=np.int32)[:, None], (5, 3))
    hits = jax.jit(cross_entropy)(np.repeat(logits, 5, axis=0), targets).hits
    np.testing.assert_array_equal(hits, [[t == 0, t == 2, t == 0] for t in range(5)])


def test_model_learns_which_document_a_token_belongs_to():
    """Kills: segments that stop at the trainer, or reach the model of a batch that has none."""
    seen = []

    class Spy:
        def features_with_losses(self, tokens, *, segment_ids, key):
            seen.append(segment_ids)
            return jnp.zeros((*tokens.shape, 2)), {}

        def logits(self, features):
            return features

    batch = jax.device_get(recall_batch())
    ids = np.cumsum(batch.tokens == 3, axis=1)
    for each in (batch, dataclasses.replace(batch, segment_ids=ids)):
        assert jax.eval_shape(lambda each=each: score_targets(Spy(), each).nats).shape == (4, 3)
    assert seen[0] is None
    np.testing.assert_array_equal(seen[1], ids)


def test_loss_is_the_mean_over_labels_of_all_rows(small_config):
    """Kills: a mean of row means, which weighs a row with one absent answer too much; labels shifted by a position."""
    blueprint, step, state = make_step(small_config)
    batch = recall_batch()
    forward = jax.jit(lambda variables, tokens: blueprint.model(variables)(tokens))
    logits = np.asarray(forward(state.variables, batch.tokens), np.float64)
    nats = []
    for b, (where, wanted) in enumerate(zip(batch.positions, batch.targets, strict=True)):
        for position, target in zip(where, wanted, strict=True):
            if target != -100:
                row = logits[b, position]
                nats.append(np.log(np.exp(row).sum()) - row[target])
    assert len(nats) == 11
    after, metrics = jax.jit(step)(state, batch)
    np.testing.assert_allclose(metrics["loss"], np.mean(nats), rtol=1e-5)
    assert int(after.step) == 1
    np.testing.assert_array_equal(after.key, state.key)
    assert metrics["loss"].dtype == jnp.float32


@pytest.mark.full
@pytest.mark.usefixtures("default_compilation")
def test_a_step_that_is_compiled_as_users_do(small_config):
    """Kills: numbers that only XLA's optimizations change: loss and every updated parameter against the unoptimized
    program, for two scanned layers, dropout, positions and rows with an absent answer."""
    model = dataclasses.replace(small_config.model, n_layers=2, residual_dropout=0.1)
    config = dataclasses.replace(small_config, model=model)
    _, step, state = make_step(config)
    lowered, batch = jax.jit(step).lower(state, recall_batch()), recall_batch()
    optimized, plain = lowered.compile(), lowered.compile(compiler_options=HASTY)
    (found, metrics), (expected, expected_metrics) = optimized(state, batch), plain(state, batch)
    for name in metrics:
        np.testing.assert_allclose(metrics[name], expected_metrics[name], rtol=1e-5)
    moments = [jax.tree.leaves(each.opt_state[1][0].mu) for each in (found, expected)]
    for a, b in zip(*moments, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


@pytest.mark.full
def test_nats_of_each_target(small_config):
    """Kills: nats of the wrong position or row, of targets without label, with dropout, and sums that differ."""
    config = dataclasses.replace(small_config, model=dataclasses.replace(small_config.model, residual_dropout=0.1))
    blueprint, _, state = make_step(config)
    batch = spread(recall_batch())

    @jax.jit
    def scores(variables):
        nats = make_target_nats_step(blueprint, config.train)(variables, batch)
        return nats, make_eval_step(blueprint, config.train)(variables, batch), blueprint.model(variables)(batch.tokens)

    nats, sums, rows = jax.device_get(scores(state.variables))
    rows = rows.astype(np.float64)
    targets = np.asarray(batch.targets)
    assert (nats.shape, nats.dtype) == (targets.shape, jnp.float32)
    for b, i in np.ndindex(targets.shape):
        expected = np.log(np.exp(rows[b, i]).sum()) - rows[b, i, targets[b, i]] if targets[b, i] != -100 else 0.0
        np.testing.assert_allclose(nats[b, i], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(nats.sum(), sums.nats, rtol=1e-6)


def test_dropout_follows_step_and_key_alone(small_config):
    """Kills: one mask for all steps, a mask that a resumed run would not see again, dropout in validation."""
    config = dataclasses.replace(small_config, model=dataclasses.replace(small_config.model, residual_dropout=0.5))
    blueprint, step, state = make_step(config)
    step, batch = jax.jit(step), recall_batch()

    def loss(n, key):
        key_data = jax.random.key_data(jax.random.key(key))
        return float(step(state._replace(step=jnp.asarray(n, jnp.int32), key=key_data), batch)[1]["loss"])

    assert loss(4, 7) == loss(4, 7)
    assert len({loss(4, 7), loss(5, 7), loss(4, 8)}) == 3
    evaluate = jax.jit(make_eval_step(blueprint, config.train))
    scores = [float(evaluate(state.variables, batch).nats) for _ in range(2)]
    assert scores[0] == scores[1] != 11 * loss(4, 7)
