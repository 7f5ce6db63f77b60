"""Based, F.14 to F.29: degrees of layers and of recall. Kills: a degree that no bound allows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.theory import attention_recall, polynomial_degree, recall_circuit
from experiments.theory.circuits import compile_channels
from experiments.theory.parallel_recall import NOTHING, one_sort
from experiments.theory.parameters import base_conv
from experiments.theory.polynomial_degree import (
    address_circuit,
    coefficients,
    degree,
    equality,
    equality_by_recall,
    evaluate,
    every_input,
    largest_message,
    least_layers,
    pair_circuit,
    recall_bit,
)
from jaxzoo.mixers import HyenaConfig

pytestmark = pytest.mark.full
RNG = np.random.default_rng(0)


def values(circuit, bits, *known):
    """Output of the compiled layers for all inputs of some bits, after known ones; and the number of layers."""
    compiled = compile_channels(circuit)
    x = every_input(2, bits)
    x = np.concatenate([np.tile(np.array(known, int), (len(x), 1)), x], axis=1)
    y = jax.jit(compiled.__call__)(jnp.asarray(x, jnp.float32))[:, 0]
    return np.asarray(y, np.float64).reshape((2,) * bits), len(compiled.layers)


def test_coefficients_by_hand():
    """Kills: a transform of one axis only, a sign, a coefficient at the wrong variable."""
    x, y = every_input(2, 2).T
    np.testing.assert_array_equal(coefficients((3 - 2 * x + 5 * x * y).reshape(2, 2)), [[3, 0], [-2, 5]])
    digits = every_input(3, 3)
    table = RNG.normal(size=(3, 3, 3))
    found = [evaluate(coefficients(table), each) for each in digits]
    np.testing.assert_allclose(found, table.reshape(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_layers", [1, 2])
def test_layers_double_the_degree(n_layers):
    """Kills: F.17 with degree L + 1, or with 2^L that is never reached; a filter that reads one row only."""
    rows, width = 3, 2
    layers = [
        base_conv(*(RNG.normal(size=s) for s in ((width, width), (width,), (rows, width), (width,))))
        for _ in range(n_layers)
    ]
    u = every_input(2, rows * width).reshape(-1, rows, width)
    y = jnp.asarray(u, jnp.float32)
    for layer in layers:
        y = layer(y)
    assert degree(np.asarray(y[:, -1, 0], np.float64).reshape((2,) * (rows * width))) == 2**n_layers


@pytest.mark.parametrize("order", [2, 3])
def test_degree_of_hyena(order):
    """Kills: Remark F.15 with Delta = order: each gate adds one, to the degree 1 of the values."""
    rows, width = 3, 2
    layer = HyenaConfig(d_model=width, order=order, n_taps=rows, init_std=1.0).build(rngs=nnx.Rngs(0))
    u = every_input(2, rows * width).reshape(-1, rows, width)
    y = np.asarray(layer(jnp.asarray(u, jnp.float32))[:, -1, 0], np.float64)
    assert degree(y.reshape((2,) * (rows * width))) == order + 1


@pytest.mark.parametrize("d", [3, 4])
def test_recall_of_binary_tokens(d):
    """Kills: a degree of 2 d (without the value), one layer too few, a circuit of another function or depth."""
    wanted = recall_bit(d)
    assert (degree(wanted), degree(recall_bit(d - 2))) == (2 * d + 1, 2 * d - 3)
    found, n_layers = values(pair_circuit(d), 2 * d + 1)
    np.testing.assert_array_equal(np.round(found, 3), wanted)
    assert n_layers == 2 * least_layers(2 * d + 1) + 1
    assert 2 ** least_layers(2 * d + 1) >= 2 * d + 1 > 2 ** (least_layers(2 * d + 1) - 1)


@pytest.mark.parametrize(("base", "p"), [(2, 1), (3, 1), (2, 3), (4, 2)])
def test_equality_of_p_hot_tokens(base, p):
    """Kills: a bit of a digit that is kept, a degree of the number of bits, a smaller degree for 1-hot tokens."""
    assert degree(equality(base, p)) == 2 * p


def test_bob_needs_every_coefficient():
    """Kills: coefficients of another query, fewer than N of them that are enough, a bound below the protocol's."""
    d = 3
    string = RNG.integers(0, 2, 2**d)
    found, n_layers = values(address_circuit(d), d, *string)
    message = np.round(coefficients(found))
    answers = [evaluate(message, query) for query in every_input(2, d)]
    np.testing.assert_array_equal(answers, string)
    assert message.size == largest_message(d, n_layers) == 2**d
    assert [largest_message(4, n_layers) for n_layers in (0, 1, 2)] == [5, 11, 16]
    assert np.abs(message).max() <= 2 ** (d - 1)


def circuit_recall(keys, values, queries):
    """Two triples by the layers of BaseConv of `recall_circuit.py`."""
    bits = lambda x: x[..., None] >> np.arange(2)[::-1] & 1  # noqa: E731
    wires = np.concatenate([bits(keys), values[..., None], bits(queries)], axis=-1).reshape(len(keys), -1)
    layers = compile_channels(recall_circuit.build(2, 2))
    match = jax.jit(layers.__call__)(jnp.asarray(wires, jnp.float32))[:, :1] > 0.5
    return np.pad(np.asarray(match), ((0, 0), (1, 0)))


def attention_finds(keys, values, queries):
    layers = attention_recall.build(4, 9)
    outputs = jax.jit(lambda u: layers(u))(attention_recall.encode(keys, values, queries, 4))
    return attention_recall.answers(outputs) != attention_recall.NOTHING


def sort_finds(keys, values, queries):
    rows = [one_sort(*(jnp.asarray(x, jnp.int32) for x in row)) for row in zip(keys, values, queries, strict=True)]
    return np.array(rows) != NOTHING


@pytest.mark.parametrize("recall", [circuit_recall, attention_finds, sort_finds])
def test_a_model_of_recall_solves_equality(recall):
    """Kills: the match of a query with its own key, the first triple's answer in place of the second's."""
    x, y = every_input(4, 2).T
    np.testing.assert_array_equal(equality_by_recall(recall, x, y), x == y)


def test_layers_that_the_theorems_ask_for():
    """Kills: a floor where the degree needs a ceiling: d = 4 has 2 d = 8 = 2^3, but degree 9."""
    assert [polynomial_degree.least_layers(2 * d + 1) for d in (1, 2, 4, 8)] == [2, 3, 4, 5]
    assert [polynomial_degree.least_layers(2 * p) for p in (1, 2, 3)] == [1, 2, 3]
