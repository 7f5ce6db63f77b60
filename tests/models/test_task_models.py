"""Models of two tasks: autoencoders (`decode_last`), and models that read pairs (`pair_values`)."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxzoo
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.evals.compare import compare
from jaxzoo.generation import generate
from jaxzoo.inspection.picture import look
from jaxzoo.layers.variables import Buffer
from jaxzoo.mixers import AttentionConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.accounting import count_parameters, flops_per_token, head_flops
from jaxzoo.models.blueprint import make_blueprint
from jaxzoo.models.describe import describe
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.tasks import continuous_mqar
from jaxzoo.tasks.mad import CompressionConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import RunConfig, TrainConfig
from jaxzoo.train.loss import score_targets
from jaxzoo.train.memory import check_model, frozen_entries
from jaxzoo.train.session import Session
from tests.models.hybrids import hybrid_config, make_model, random_tokens, run
from tests.pallas_kernels.shared import full, slow

PATTERN = (TaylorLinearAttentionConfig(n_heads=2, feature_dim=3), AttentionConfig(n_heads=2, positions="rotary"))
N_KEYS, N_VALUES = 5, 11
COUNT, FLOPS = slice(48, 65), slice(82, 99)
"""Columns of `describe`."""


def autoencoder(**fields) -> LanguageModelConfig:
    """Two layers and a decoder."""
    return hybrid_config(**{"pattern": PATTERN, "n_layers": 2, "decode_last": True, **fields})


def pair_reader(**fields) -> LanguageModelConfig:
    """Two layers that read pairs of 5 keys and 11 values, whose head has 16 rows."""
    size = N_KEYS * (N_VALUES + 1)
    return hybrid_config(**{"pattern": PATTERN, "n_layers": 2, "vocab_size": size, "pair_values": N_VALUES, **fields})


@pytest.mark.slow
def test_an_autoencoder_sees_its_last_token_alone():
    """Kills: features of other positions that reach the head, a decoder after the final norm, or before a stack; its
    equation is asked for in tests/layers."""
    model, tokens = make_model(autoencoder(tie_embeddings=False)), random_tokens(autoencoder())

    @nnx.jit
    def decoded(model, tokens):
        return jaxzoo.capture(model, "layers.1.out", "decoded", "features")(tokens)

    logits, seen = decoded(model, tokens)
    last = seen["layers.1.out"].at[:, :-1].set(0.0)
    np.testing.assert_allclose(seen["decoded"], model.decoder(last), atol=1e-5)
    np.testing.assert_allclose(seen["features"], model.final_norm(seen["decoded"]), atol=1e-5)
    np.testing.assert_allclose(logits[..., :13], seen["features"] @ model.head[...][:13].T, atol=1e-4)
    assert float(np.abs(np.diff(np.asarray(seen["decoded"]), axis=1)).max()) > 0.1


@pytest.mark.slow
def test_an_autoencoder_refuses_streams_and_packed_documents():
    """Kills: a stream that decodes each token from itself, documents that are decoded from the last one's end."""
    model, tokens = make_model(autoencoder()), jnp.zeros((1, 3), jnp.int32)
    state = make_model(autoencoder(decode_last=False)).init_state(1)
    for call, message in (
        (lambda: model.init_state(1), "decode_last=True: an autoencoder has no next token and cannot stream"),
        (lambda: model.prefill(tokens, state), "decode_last=True: an autoencoder has no next token"),
        (lambda: model.step(tokens[:, 0], state), "decode_last=True: an autoencoder has no next token"),
        (lambda: model(tokens, segment_ids=tokens), "decode_last=True does not honour segment_ids"),
        (lambda: generate(model, [[1, 2]], max_tokens=1), "decode_last=True: the model answers the tokens that it has"),
        (lambda: generate(make_model(pair_reader()), [[1]], max_tokens=1), "pair_values=11: the model answers values"),
    ):
        with pytest.raises(ValueError, match=f"^LanguageModelConfig.{message}") as error:
            call()
        assert "\n" not in str(error.value)
    assert not autoencoder().streams
    assert "no stream" in describe(autoencoder()).splitlines()[-4]


@pytest.mark.full
def test_pairs_are_embedded_by_frozen_tables():
    """Kills: key and value in the other order, a value off by one, a value in the place of none, a head of another
    table, a projection left out, answers among the padding; an id outside of the pairs that gives another one."""
    config = pair_reader()
    model = make_model(config)
    tokens = random_tokens(config).at[0, :3].set(jnp.array([0, 12, 59]))
    logits, seen = nnx.jit(lambda m, x: jaxzoo.capture(m, "embedded", "features")(x))(model, tokens)
    keys, values = (np.asarray(table[...], np.float64) for table in (model.pairs.keys, model.pairs.values))
    assert (keys.shape, values.shape) == ((5, 8), (16, 8))
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([keys, values]), axis=1), 1.0, atol=1e-6)
    kernel, bias = (
        np.asarray(leaf[...], np.float64) for leaf in (model.pairs.in_proj.kernel, model.pairs.in_proj.bias)
    )
    for row in range(2):
        for t, token in enumerate(np.asarray(tokens[row]).tolist()):
            key, value = divmod(token, N_VALUES + 1)
            pair = np.concatenate([keys[key], values[value - 1] if value else np.zeros(8)])
            expected = pair @ kernel + bias
            np.testing.assert_allclose(seen["embedded"][row, t], expected, atol=1e-5)
    out = np.asarray(model.pairs.out_proj(seen["features"]), np.float64)
    np.testing.assert_allclose(logits[..., :N_VALUES], out @ values[:N_VALUES].T, atol=1e-5)
    assert (logits[..., N_VALUES:] < -1e29).all()
    outside = run(model, jnp.array([[60, 1, 2], [-1, 1, 2]]))
    assert bool(jnp.isnan(outside[:, 0, :N_VALUES]).all())


def test_tables_are_buffers_without_a_row_per_token(monkeypatch):
    """Kills: tables that learn, a table with a row for each pair, and a memory check that leaves the tables out."""
    config = pair_reader()
    shapes = make_blueprint(config).shapes
    assert {name: leaf.shape for name, leaf in shapes.buffers["pairs"].items()} == {"keys": (5, 8), "values": (16, 8)}
    assert set(shapes.params) == {"pairs", "stacks", "final_norm"}
    assert all(60 not in leaf.shape and 64 not in leaf.shape for leaf in jax.tree.leaves(shapes))
    buffers = nnx.state(make_model(config), Buffer)
    assert frozen_entries(config) == sum(leaf.size for leaf in jax.tree.leaves(buffers)) == 8 * (5 + 16)
    assert frozen_entries(autoencoder()) == 0
    monkeypatch.setattr("jaxzoo.train.memory.memory_of_each", lambda _: 1e9)
    with pytest.raises(ValueError, match=r"needs 8.6 GB for [\d,]{5} parameters and 2,147,483,712 frozen numbers and"):
        check_model(pair_reader(vocab_size=3 * 2**28, pair_values=2))


@pytest.mark.parametrize(("config", "matrices"), [(autoencoder(), 2), (pair_reader(), 3)])
def test_costs_add_up(config, matrices):
    """Kills: a projection that no row counts, or two; frozen tables counted as parameters; d^2 FLOPs per matrix."""
    *rows, total = [line for line in describe(config).split("-" * 99)[2].splitlines() if line[:1] > " "][
        : 5 + config.decode_last
    ]
    parameters, flops = ([int(line[part].replace(",", "") or 0) for line in (*rows, total)] for part in (COUNT, FLOPS))
    assert total.startswith("model")
    assert sum(parameters[:-1]) == parameters[-1] == count_parameters(config)
    assert sum(flops[:-1]) == pytest.approx(flops[-1], abs=1)
    plain = dataclasses.replace(config, decode_last=False, pair_values=0)
    heads = head_flops(config) - head_flops(plain)
    assert flops_per_token(config, 12) - flops_per_token(plain, 12) - heads == matrices * 2 * 8**2


@nnx.jit
def full_and_stream(model, tokens):
    """Logits of the full pass, and of a prefill and steps."""
    head, state = model.prefill(tokens[:, :7], model.init_state(2))
    steps = []
    for t in range(7, tokens.shape[1]):
        logits, state = model.step(tokens[:, t], state)
        steps.append(logits[:, None])
    return model(tokens), jnp.concatenate([head, *steps], axis=1)


@pytest.mark.slow
def test_pairs_are_read_one_by_one_like_all_at_once():
    """Kills a stream that embeds or answers otherwise."""
    config = pair_reader()
    expected, logits = full_and_stream(make_model(config), random_tokens(config, length=9))
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("config", [full(autoencoder()), slow(pair_reader(vocab_size=7 * 12))])
def test_loss_in_chunks(config):
    """Kills a chunked head that takes padding rows for answers, or ids for values."""
    model, tokens = make_model(config), random_tokens(config)
    rng = np.random.default_rng(1)
    targets = jnp.asarray(rng.integers(config.n_outputs, size=tokens.shape), jnp.int32).at[0, 2].set(UNLABELLED)
    batch = Batch(tokens=tokens, targets=targets)
    whole, parts = (nnx.jit(lambda m, n=n: score_targets(m, batch, chunk=n))(model) for n in (0, 4))
    np.testing.assert_allclose(parts.nats, whole.nats, atol=1e-5)
    np.testing.assert_array_equal(parts.hits, whole.hits)


@pytest.mark.slow
def test_inspection_knows_who_answers():
    """Kills: the id of a pair in the place of its name, a pair that is not found by its value; an autoencoder whose
    answers are looked for at the position that they are of."""
    task = continuous_mqar.preset(2, n_keys=N_KEYS, n_values=N_VALUES)
    batch = task.labelled(0, np.arange(1))
    seen = look(make_model(pair_reader()), batch)
    words = task.as_text(np.asarray(batch.tokens[0]), np.full(4, UNLABELLED)).split()
    assert seen.names == words
    for query in seen.queries:
        (source,) = query.sources
        assert words[source] == f"{words[query.position][:-1]}={query.target}"
        assert query.reader == query.position
    seen = look(make_model(autoencoder()), CompressionConfig(vocab_size=13, length=6).labelled(0, np.arange(1)))
    assert [(q.position, q.sources, q.reader) for q in seen.queries] == [(i, (i,), 5) for i in range(6)]


def test_models_of_two_kinds_are_not_compared():
    """Kills scores of an autoencoder next to those of a language model, which answers other questions."""
    models: Any = {
        kind: SimpleNamespace(model=SimpleNamespace(config=autoencoder(decode_last=kind == "first")), tokenizer=None)
        for kind in ("first", "second")
    }
    with pytest.raises(ValueError, match=r"^second: decode_last=False must be the first model's True"):
        compare(models, cast(Any, SimpleNamespace(vocab_size=13)))


def experiment(task, **fields) -> RunConfig:
    """Steps of a model of one layer on a task."""
    examples = (Examples(task=task, n_examples=64),)
    model = LanguageModelConfig(
        pattern=PATTERN[1:],
        d_model=16,
        n_layers=1,
        vocab_size=task.vocab_size,
        max_length=task.length,
        mlp="none",
        **task.model_fields,
    )
    data = RecallDataConfig(train=examples, valid=examples)
    return RunConfig(model=model, data=data, train=TrainConfig(batch_size=16, valid_batch_size=16), **fields)


TASKS = {
    "compression": CompressionConfig(length=8),
    "continuous": continuous_mqar.preset(4, n_keys=8, n_values=12),
}


def three_steps(config, devices):
    session = Session(config, devices)
    with jax.set_mesh(session.mesh):
        state, stream, losses = session.init_state(), session.stream(), []
        first = jax.tree.map(np.asarray, state.buffers)
        for _ in range(3):
            state, metrics = session.update(state, next(stream))
            losses.append(float(metrics["loss"]))
        return losses, first, jax.tree.map(np.asarray, state.buffers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["continuous", "compression"])
def test_training_on_a_mesh_equals_one_device(name):
    """Kills: a last token of each device's own part, a table that is shared out and read as if it were whole, a table
    that is updated."""
    config = experiment(TASKS[name])
    expected, before, after = three_steps(dataclasses.replace(config, mesh=MeshConfig(data=1)), jax.devices()[:1])
    assert all((a == b).all() for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True))
    assert max(expected) - min(expected) > 1e-3
    mesh = MeshConfig(data=1, fsdp=2, tensor=2, sequence=2)
    losses, *_ = three_steps(dataclasses.replace(config, mesh=mesh), None)
    np.testing.assert_allclose(losses, expected, atol=1e-5, rtol=0)
