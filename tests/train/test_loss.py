"""Chunked cross-entropy and accumulation against one pass. Kills: a wrong loss or gradient of a part."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from jaxzoo.train.cross_entropy import rows_at_once, rows_by_passes
from jaxzoo.train.loss import _Head, _mean_of_first, _on_mesh, _sums, score_targets
from jaxzoo.train.step import _accumulated
from pallas_kernels.dispatch import lowering_for
from tests.mixers.outside import N_TOKENS, SignedTokensConfig
from tests.pallas_kernels.shared import full, needs_eight_devices, slow
from tests.train.test_train_step import make_step, recall_batch, spread


def changed(config, **fields):
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **fields))


def assert_same_update(config, other, batch, *, rtol=1e-4):
    """Metrics of one step under both configs, whose updates must agree; the batch's rows and labels differ."""
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
    return plain, changed_metrics


@pytest.mark.parametrize("chunk", [4, full(15), slow(1)])
def test_chunks_give_loss_and_gradients_of_the_whole(small_config, chunk):
    """Kills: a last chunk dropped or counted in full, rows mixed up with chunks, a lost gradient of the head."""
    assert_same_update(small_config, changed(small_config, loss_chunk=chunk), spread(recall_batch()))


def test_chunks_keep_each_score_in_its_place(small_config):
    """Kills: scores that come back in the order of the chunks."""
    blueprint, _, state = make_step(small_config)
    batch = spread(recall_batch())

    @jax.jit
    def scores(variables):
        model = blueprint.model(variables)
        return score_targets(model, batch), score_targets(model, batch, chunk=4)

    whole, chunked = scores(state.variables)
    np.testing.assert_array_equal(chunked.labelled, whole.labelled)
    np.testing.assert_array_equal(chunked.hits, whole.hits)
    np.testing.assert_allclose(chunked.nats, whole.nats, rtol=1e-5)
    np.testing.assert_allclose(chunked.log_normalizer, whole.log_normalizer, rtol=1e-5)


@pytest.mark.parametrize("form", [rows_by_passes, rows_at_once])
def test_what_scores_need_of_logits(form):
    """Kills: a sum that overflows, or that padding (-inf) makes NaN or enters; a tie that counts as a hit, or two that
    are one; neighbours of a logit that tie with it; a target of other columns that is found in these."""
    logits = np.float32(120 * np.random.default_rng(0).normal(size=(3, 4, 33)))
    logits[..., -3:] = -np.inf
    logits[0, 0, [4, 20]] = logits[0, 1, [4, 20]] = 500
    logits[2] = np.minimum(logits[2], -np.float32([[0], [0], [1], [2]]))
    logits[2, :, [4, 20]] = -np.float32([[0, 0, 1, 2], [-0.0, 0, 1, 2]])
    logits[2, 1:, 4] = np.nextafter(logits[2, 1:, 20], np.float32([-1, 0, -3]))
    columns = np.int32([[20, 4, -9, 40], [0, 7, 29, 33], [20, 20, 20, 20]])
    here = (columns >= 0) & (columns < 33)
    peak = logits.max(-1)
    picked = np.where(here, np.take_along_axis(logits, np.where(here, columns, 0)[..., None], -1)[..., 0], 0)
    found = jax.jit(form)(logits, columns)
    np.testing.assert_allclose(found.peak, peak, rtol=2e-7, atol=2e-38)
    total = np.exp(np.float64(logits) - np.float64(found.peak)[..., None]).sum(-1)
    np.testing.assert_allclose(found.total, total, rtol=1e-5)
    np.testing.assert_array_equal(found.picked, picked)
    hits = np.asarray(found.picked) >= np.asarray(found.peak)
    np.testing.assert_array_equal(hits[here], (logits.argmax(-1) == columns)[here])
    np.testing.assert_array_equal((np.asarray(found.peak) > peak)[~here], (columns > 0)[~here])


@pytest.mark.parametrize(("chunk", "soft_cap", "z_loss"), [(0, 0.0, 0.0), (2, 3.0, 0.25)])
def test_gradient_of_the_sum_of_losses(chunk, soft_cap, z_loss):
    """Kills: a gradient that is not softmax minus target, or misses the z-loss or the cap, of an unlabelled target, of
    one chunk alone, without the factor of the sum; a softmax over padding; hits or squares of other targets."""
    rng, vocab, b, m, d = np.random.default_rng(0), 7, 2, 3, 4
    features, table = rng.normal(size=(b, m, d)), rng.normal(size=(8, d))
    targets = np.array([[1, -100, 6], [0, 3, -100]], np.int32)
    labelled = targets != UNLABELLED
    slope = 1.0
    logits = (features @ table.T)[..., :vocab]
    if soft_cap:
        logits = soft_cap * np.tanh(logits / soft_cap)
        slope = 1 - (logits / soft_cap) ** 2
    log_normalizer = np.log(np.exp(logits).sum(-1))
    softmax, target = np.exp(logits - log_normalizer[..., None]), targets[..., None] == np.arange(vocab)
    d_logits = slope * labelled[..., None] * (softmax * (1 + 2 * z_loss * log_normalizer[..., None]) - target)
    nats = (log_normalizer - (logits * target).sum(-1))[labelled].sum()
    squares = (log_normalizer[labelled] ** 2).sum()

    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def loss(features, table):
        loss, totals = _sums(features, table, targets, _Head(chunk, vocab, soft_cap, z_loss))
        return loss / 5, totals

    (found, totals), (d_features, d_table) = jax.jit(loss)(np.float32(features), np.float32(table))
    np.testing.assert_allclose(5 * found, nats + z_loss * squares, rtol=1e-5)
    hits = (logits.argmax(-1) == targets).sum()
    np.testing.assert_allclose(np.ravel(totals), [nats, squares, hits], rtol=1e-5)
    np.testing.assert_allclose(5 * d_features, d_logits @ table[:vocab], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(5 * d_table[:vocab], np.einsum("bmv,bmd->vd", d_logits, features), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(d_table[vocab:], 0)


@needs_eight_devices
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_sum_of_losses_of_a_mesh(platform):
    """Kills: a loss, totals or gradients of one device's targets, rows of the vocabulary or columns of the table; what
    several devices have alike, counted by each; chunks that take a part of one device alone."""
    rng, vocab = np.random.default_rng(0), 13  # of 16 rows
    features, table = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4, 6, 8), (16, 8)))
    targets = jnp.asarray(np.where(rng.random((4, 6)) < 0.2, UNLABELLED, rng.integers(0, vocab, (4, 6))), jnp.int32)
    config = SimpleNamespace(n_outputs=vocab, logit_soft_cap=0.0)

    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def loss(features, table):
        model: Any = SimpleNamespace(head_table=table, config=config)
        loss, totals = _on_mesh(_sums, features, model, targets, 4, 0.5)
        return loss / 5, totals

    expected = jax.jit(loss)(features, table)
    for sizes in ({"fsdp": 2, "sequence": 2, "tensor": 2}, {"data": 2, "fsdp": 4}):  # 4 rows do not divide by 8
        with jax.set_mesh(make_mesh(MeshConfig(**{"data": 1, **sizes}))), lowering_for(platform):
            found = jax.jit(loss)(features, table)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_products_of_the_head_are_of_the_compute_dtype():
    """Kills: products of float32 in the gradient of a bfloat16 model, which take a GPU twice the time, and logits that
    are computed a second time; the gradient of the table is float32."""
    shapes = ((2, 4, 16), jnp.bfloat16), ((32, 16), jnp.float32), ((2, 4), jnp.int32)

    def loss(features, table, targets):
        return _sums(features, table, targets, _Head(2, 32, 0.0))[0]

    lowered = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    products = [line.split(" : ")[-1] for line in lowered.as_text().splitlines() if "dot_general" in line]
    assert len(products) == 3
    for types in products:
        assert types.count("bf16") == 2
    assert lowered.out_info[1].dtype == jnp.float32


def test_pooled_features_by_hand():
    """Kills: a mean that counts the padding, or divides by the length of the row; NaN in a row that is padding."""
    features = jnp.array(
        [[[1.0, 2.0], [3.0, 6.0], [50.0, 70.0]], [[4.0, 5.0], [8.0, 9.0], [0.0, 1.0]], [[7.0, 7.0]] * 3]
    )
    pooled = _mean_of_first(features, jnp.array([2, 3, 0]))
    np.testing.assert_array_equal(pooled, [[[2.0, 4.0]], [[4.0, 5.0]], [[0.0, 0.0]]])


@pytest.mark.parametrize("parts", [full(2), slow(4)])
def test_accumulated_gradients_are_those_of_the_batch(small_config, parts):
    """Kills: a mean of the parts' means (one row has fewer labels), parts added without all their rows."""
    assert_same_update(small_config, changed(small_config, accumulate=parts), recall_batch())


def test_accumulated_loss_terms_are_those_of_the_batch(small_config):
    """Kills: terms that mixers add to the loss, and are means over a part, summed over the parts."""
    pattern = (SignedTokensConfig(size_weight=3.0),)
    model = dataclasses.replace(small_config.model, pattern=pattern, vocab_size=N_TOKENS)
    config = dataclasses.replace(small_config, model=model)
    batch = jax.tree.map(lambda x: np.where(x == UNLABELLED, x, x % N_TOKENS), jax.device_get(recall_batch()))
    plain, accumulated = assert_same_update(config, changed(config, accumulate=2), batch)
    assert plain["loss/size"] > 1e-3
    for metrics in (plain, accumulated):
        np.testing.assert_allclose(metrics["loss"], metrics["loss/cross_entropy"] + metrics["loss/size"], rtol=1e-5)


def test_accumulated_parts_draw_their_own_dropout():
    """Kills: one dropout mask for all parts, and a part that is left out or counted twice."""
    batch = Batch(**dict.fromkeys(("tokens", "targets"), np.arange(8, dtype=np.int32).reshape(8, 1)))

    def drawn(params, part, key):
        rows = jnp.zeros(8).at[part.tokens[:, 0]].add(1.0)
        return rows, rows * jax.random.uniform(key)

    rows, noise = jax.jit(lambda key: _accumulated(drawn, {}, batch, key, 4))(jax.random.key(0))
    np.testing.assert_array_equal(rows, 1)
    assert len(set(np.asarray(noise).tolist())) == 4
