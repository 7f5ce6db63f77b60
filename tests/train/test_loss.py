"""Chunked cross-entropy, gradient accumulation and z-loss against one pass over the whole batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.data.base import Batch
from jaxzoo.plan.collectives import read_traffic
from jaxzoo.plan.hlo import Hlo
from jaxzoo.sharding import MeshConfig
from jaxzoo.train.loss import score_targets
from jaxzoo.train.session import Session
from tests.mixers.test_sequence_parallel import HASTY
from tests.pallas_kernels.shared import needs_eight_devices
from tests.train.test_train_step import make_step, recall_batch, spread, without_dropout


def changed(config, **fields):
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **fields))


def assert_same_update(config, other, batch, *, rtol=1e-4):
    """One step under both configs; the batch's rows and labels differ."""
    results = []
    for each in (config, other):
        _, step, state = make_step(each)
        results.append(jax.jit(step)(state, batch))
    (_, plain), (_, changed_metrics) = results
    for name in ("loss", "accuracy", "grad_norm"):
        np.testing.assert_allclose(changed_metrics[name], plain[name], rtol=1e-5)
    for a, b in zip(*(jax.tree.leaves(state.opt_state[1][0].mu) for state, _ in results), strict=True):
        assert np.abs(a).max() > 0
        np.testing.assert_allclose(b, a, rtol=rtol, atol=1e-5 * np.abs(a).max())


@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.slow), 4, 15])
def test_chunks_give_loss_and_gradients_of_the_whole(tiny_config, chunk):
    """Kills: a last chunk dropped or counted in full, rows mixed up with chunks, a lost gradient of the head."""
    config = without_dropout(tiny_config)
    assert_same_update(config, changed(config, loss_chunk=chunk), spread(recall_batch()))


def test_chunks_keep_each_score_in_its_place(tiny_config):
    """Kills: scores that come back in the order of the chunks."""
    config = without_dropout(tiny_config)
    blueprint, _, state = make_step(config)
    batch = spread(recall_batch())
    model = blueprint.model(state.variables)
    whole, _ = score_targets(model, batch)
    chunked, _ = score_targets(model, batch, chunk=4)
    np.testing.assert_array_equal(chunked.labelled, whole.labelled)
    np.testing.assert_array_equal(chunked.hits, whole.hits)
    np.testing.assert_allclose(chunked.nats, whole.nats, rtol=1e-5)
    np.testing.assert_allclose(chunked.log_normalizer, whole.log_normalizer, rtol=1e-5)


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulated_gradients_are_those_of_the_batch(tiny_config, parts):
    """Kills: a mean of the parts' means (one row has fewer labels), parts added without all their rows."""
    config = without_dropout(tiny_config)
    assert_same_update(config, changed(config, accumulate=parts), recall_batch())


def test_accumulated_parts_draw_their_own_dropout(tiny_config):
    """Kills: one dropout mask for all parts, whose rows then share it: equal rows would lose the same units."""
    one = recall_batch()
    batch = Batch(**{name: jnp.repeat(x[:1], 4, axis=0) for name, x in vars(one).items() if x is not None})
    same = changed(tiny_config, accumulate=4)
    losses = []
    for config in (without_dropout(same), same):
        _, step, state = make_step(config)
        losses.append(float(jax.jit(step)(state, batch)[1]["loss"]))
        alone = Batch(**{name: x[:1] for name, x in vars(batch).items() if x is not None})
        losses.append(float(jax.jit(make_step(changed(config, accumulate=1))[1])(state, alone)[1]["loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[2] != pytest.approx(losses[3], rel=1e-5)


def test_z_loss_is_the_mean_squared_normaliser(tiny_config):
    """Kills: a normaliser of unlabelled positions, and a term that is reported but not minimised."""
    config = without_dropout(tiny_config)
    blueprint, step, state = make_step(changed(config, z_loss=0.5))
    batch = recall_batch()
    logits = np.asarray(blueprint.model(state.variables)(batch.tokens), np.float64)
    logits = np.take_along_axis(logits, np.asarray(batch.positions)[:, :, None], axis=1)
    squares = np.log(np.exp(logits).sum(axis=-1))[np.asarray(batch.targets) != -100] ** 2
    _, metrics = jax.jit(step)(state, batch)
    assert float(metrics["loss/z"]) == pytest.approx(0.5 * squares.mean(), rel=1e-4)
    assert float(metrics["loss"]) == pytest.approx(float(metrics["loss/cross_entropy"] + metrics["loss/z"]), rel=1e-5)
    _, plain = jax.jit(make_step(config)[1])(state, batch)
    assert float(metrics["grad_norm"]) != pytest.approx(float(plain["grad_norm"]), rel=1e-3)


def test_no_array_holds_all_logits(tiny_config):
    """Kills: logits of a large vocabulary that the backward pass keeps for every position."""
    b, m, vocab, chunk = 8, 64, 8192, 8
    model = dataclasses.replace(tiny_config.model, vocab_size=vocab, max_length=m)
    config = dataclasses.replace(without_dropout(tiny_config), model=model)
    tokens = jax.random.randint(jax.random.key(0), (b, m), 0, vocab, jnp.int32)
    batch = Batch(tokens=tokens, targets=tokens)
    temporaries = []
    for each in (changed(config, loss_chunk=0), changed(config, loss_chunk=chunk)):
        _, step, state = make_step(each)
        temporaries.append(jax.jit(step).lower(state, batch).compile().memory_analysis().temp_size_in_bytes)
    logits = 4 * b * m * vocab
    assert temporaries[0] > logits
    assert temporaries[1] < logits / 2


@pytest.mark.parametrize("sizes", [{"data": 1, "fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}])
@needs_eight_devices
def test_traffic_of_the_head_does_not_grow_with_the_chunks(tiny_config, sizes):
    """Kills: a gradient of the head that the devices sum up once a chunk, or a table that they gather once a chunk."""
    b, m, vocab = 16, 32, 1024
    model = dataclasses.replace(tiny_config.model, vocab_size=vocab, max_length=m, n_layers=2)
    config = dataclasses.replace(without_dropout(tiny_config), model=model, mesh=MeshConfig(**sizes))
    session = Session(config)
    batch = Batch(**dict.fromkeys(("tokens", "targets"), jax.ShapeDtypeStruct((b, m), jnp.int32)))
    sent = []
    with jax.set_mesh(session.mesh):
        variables = session.abstract_state.variables
        for chunk in (m // 2, m // 16):

            def loss(variables, batch, chunk=chunk):
                return score_targets(session.blueprint.model(variables), batch, chunk=chunk)[0].nats.sum()

            lowered = jax.jit(jax.grad(loss, allow_int=True)).lower(variables, batch)
            hlo = Hlo(lowered.compile(compiler_options=HASTY).as_text())
            sent.append(sum(each.wire for each in read_traffic(hlo, dict(session.mesh.shape))))
    assert sent[1] > 4 * vocab * config.model.d_model / 8
    small = 8 * 4 * 3 * b * m  # what a mesh with a tensor axis says of each target: maximum, sum, logit, and back
    assert sent[1] - sent[0] < small if "tensor" in sizes else sent[1] == sent[0]
