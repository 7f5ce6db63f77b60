"""CAT, Propositions 1 and 2. Kills: a law of landmarks that tokens do not follow, a wrong bound."""

import math

import jax
import numpy as np
import pytest
from scipy.special import log_ndtr

from experiments.landmarks import critical_dimensions, sufficient_dimension, uniform_critical_dimensions
from experiments.theory.landmark import hierarchical_place, recall_layer

LENGTH, SIZE = 64, 8
BLOCKS = LENGTH // SIZE


def insufficient_dimension(t, *, n_blocks, block_size, sigma=1.0, epsilon=0.0):
    """Bound (B); 0 where t is so large that it says nothing."""
    root = math.sqrt((1 - epsilon) * math.log(n_blocks)) - t
    return 2 * sigma**2 * block_size * max(root, 0.0) ** 2


def guarantee(t):
    """`1 - 3 exp(-t^2 / 4)`, the probability of the propositions; it says nothing up to t = 2.1."""
    return 1 - 3 * math.exp(-(t**2) / 4)


def rho_of(smoothing):
    return 1.0 if smoothing == "mean" else np.exp(-1 / SIZE)


def landmarks_of(x, smoothing):
    """(n, blocks, d) of tokens (n, length, d), in float64 and token by token: those before the last block."""
    rho, running, found = rho_of(smoothing), np.zeros((len(x), x.shape[2])), []
    for i in range(x.shape[1] - SIZE):
        running = rho * running + x[:, i]
        if i % SIZE == SIZE - 1:
            found.append(running)
            running = running if smoothing == "exponential" else np.zeros_like(running)
    return np.stack(found, axis=1)


def retrieves(x, target, smoothing):
    """Whether the landmark of the block of token `target` is the query's best."""
    scores = np.einsum("bnd,bd->bn", landmarks_of(x, smoothing), x[:, -1])
    return scores.argmax(axis=1) == target // SIZE


def contexts_of_definition(rng, n, d, sigma, place=None):
    """Definition 6, without a delay of the keys: x_L somewhere before the last block."""
    x = rng.normal(0, sigma / np.sqrt(d), (n, LENGTH, d))
    x[:, -1] /= np.linalg.norm(x[:, -1], axis=1, keepdims=True)
    places = rng.integers(SIZE, size=n) if place is None else place
    first = rng.integers(BLOCKS - 1, size=n) * SIZE + places
    x[np.arange(n), first] = x[:, -1]
    return x, first


def random_contexts(rng, n, *, length, d, block_size):
    """Definition 6, float32: the token after the first x_L, whose key it is under the delay, in a block before the
    last."""
    x = rng.normal(0, 1 / np.sqrt(d), (n, length, d))
    x[:, -1] /= np.linalg.norm(x[:, -1], axis=1, keepdims=True)
    first = rng.integers(length - block_size - 1, size=n)
    x[np.arange(n), first] = x[:, -1]
    return x.astype(np.float32), first


def success_probability(d, *, n_blocks, block_size, sigma=1.0):
    """The probability of Proposition 1's event for a fixed query, by quadrature of the law: no draws."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    reach = (np.sqrt(d) / sigma + np.sqrt(block_size - 1) * nodes) / np.sqrt(block_size)
    return weights @ np.exp((n_blocks - 2) * log_ndtr(reach)) / weights.sum()


@pytest.mark.parametrize(
    ("smoothing", "place", "d", "sigma"),
    [
        ("mean", None, 16, 0.5),
        ("exponential", 3, 24, 0.7),
        pytest.param("mean", None, 16, 1.0, marks=pytest.mark.full),
        pytest.param("exponential", None, 32, 1.0, marks=pytest.mark.full),
        pytest.param("exponential", 0, 64, 1.0, marks=pytest.mark.full),
        pytest.param("exponential", SIZE - 1, 16, 1.0, marks=pytest.mark.full),
    ],
)
def test_the_law_is_that_of_tokens(smoothing, place, d, sigma):
    """Kills: the noise of a block of B and not B - 1 beside x_L, the own block as a competitor, smoothing that begins
    again in each block, a signal that ends with its block, a place counted from the end. Shares of 6000 draws of each
    kind, which differ by less than 4 of their standard errors."""
    x, first = contexts_of_definition(np.random.default_rng(1), 6000, d, sigma, place)
    tokens = retrieves(x, first, smoothing).mean()
    options = {"n_blocks": BLOCKS, "block_size": SIZE, "sigma": sigma}
    law = (critical_dimensions(6000, smoothing=smoothing, place=place, seed=2, **options) < d).mean()
    assert 0.05 < tokens < 0.95
    assert abs(tokens - law) < 4 * np.sqrt(2 * tokens * (1 - tokens) / 6000)
    if smoothing == "mean":
        assert abs(success_probability(d, **options) - law) < 4 * np.sqrt(law * (1 - law) / 6000)


@pytest.mark.full
@pytest.mark.parametrize(("smoothing", "d"), [("exponential", 40), pytest.param("mean", 20, marks=pytest.mark.full)])
def test_the_layer_recalls_what_it_retrieves(smoothing, d):
    """Kills: a landmark one token off, an own block that is retrieved, a filter that sees the future or forgets the
    blocks before. Instance by instance: the layer's output is nearest to the token after x_L if and only if the
    landmarks, summed in float64 from the delayed keys, retrieve its block."""
    x, first = random_contexts(np.random.default_rng(5), 300, length=LENGTH, d=d, block_size=SIZE)
    y = np.asarray(jax.jit(recall_layer(d, SIZE, smoothing=smoothing))(x))[:, -1]
    nearest = np.linalg.norm(y[:, None] - x, axis=2).argmin(axis=1)
    recalled = nearest == first + 1
    keys = np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], axis=1).astype(np.float64)
    keys[:, -1] = x[:, -1]  # `retrieves` reads the query there; the own block has no landmark
    np.testing.assert_array_equal(recalled, retrieves(keys, first + 1, smoothing))
    assert 0.1 < recalled.mean() < 0.9


@pytest.mark.parametrize(("n_blocks", "block_size"), [(16, 4), pytest.param(2**14, 64, marks=pytest.mark.full)])
def test_propositions_hold(n_blocks, block_size):
    """Kills: a bound that contexts break. (B) with epsilon = 0; Proposition 2 with x_L at the place where smoothing
    forgets most of it."""
    sizes = {"n_blocks": n_blocks, "block_size": block_size}
    means = critical_dimensions(1000, seed=7, **sizes)
    smooth = critical_dimensions(1000, smoothing="exponential", place=0, seed=8, **sizes)
    uniform = {dim: uniform_critical_dimensions(200, query_dim=dim, seed=9, **sizes) for dim in (1, 4, 16)}
    for t in (2.2, 2.6, 3.0):
        assert (means < sufficient_dimension(t, **sizes)).mean() >= guarantee(t)
        assert (means >= insufficient_dimension(t, **sizes)).mean() >= guarantee(t)
        assert (smooth < sufficient_dimension(t, smoothing="exponential", **sizes)).mean() >= guarantee(t)
        for dim, critical in uniform.items():
            assert (critical < sufficient_dimension(t, query_dim=dim, **sizes)).mean() >= guarantee(t)


def test_bounds_by_hand():
    """Kills: a bound without its square, a factor, sigma^2, or the root of a term. log 16 = 2.7726, its root 1.6651."""
    sizes = {"n_blocks": 16, "block_size": 10, "sigma": 0.5}
    assert sufficient_dimension(2.0, **sizes) == pytest.approx(2 * 0.25 * 10 * 3.6651**2, rel=1e-4)
    assert sufficient_dimension(2.0, query_dim=9, **sizes) == pytest.approx(5 * 6.6651**2, rel=1e-4)
    assert sufficient_dimension(1.0, smoothing="exponential", **sizes) == pytest.approx(125 * 2.6651**2, rel=1e-4)
    assert insufficient_dimension(0.5, **sizes) == pytest.approx(5 * 1.1651**2, rel=1e-4)
    assert insufficient_dimension(0.2, epsilon=0.75, **sizes) == pytest.approx(5 * (1.6651 / 2 - 0.2) ** 2, rel=1e-4)
    assert insufficient_dimension(2.0, **sizes) == 0
    assert guarantee(2.0) == pytest.approx(1 - 3 / np.e)


def test_the_constant_is_sharp():
    """Kills: another constant than 2 in the law or in the bounds: with e^400 blocks, d 20 % above `2 sigma^2 B log M`
    succeeds nearly always, and 20 % below nearly never ("if and only if d / (2 B log M) >= 1 + o(1)")."""
    sizes = {"n_blocks": int(np.exp(400.0)), "block_size": 100, "sigma": 0.5}
    threshold = sufficient_dimension(0.0, **sizes)
    assert threshold == pytest.approx(2 * 0.25 * 100 * 400)
    assert success_probability(1.2 * threshold, **sizes) > 0.98
    assert success_probability(0.8 * threshold, **sizes) < 0.02


@pytest.mark.full
def test_hierarchical_retrieval():
    """Kills: a half of another block, the second occurrence found first, products that grow with B, a hierarchy that
    fails where the block is found."""
    rng, n = np.random.default_rng(0), 60
    found = {}
    for d in (16, sufficient_dimension(2.0, n_blocks=BLOCKS, block_size=SIZE)):
        d = math.ceil(d)
        x, target = contexts_of_definition(rng, n, d, sigma=1.0)
        place, products = hierarchical_place(x, SIZE)
        assert products == BLOCKS - 1 + 2 * math.log2(SIZE)
        right = retrieves(x, target, "mean")
        found[d] = right.mean(), (place == target)[right].mean()
        assert np.all(place[right] // SIZE == target[right] // SIZE)
    few, many = found.values()
    assert many == (1.0, 1.0)
    assert few[0] < 0.9
