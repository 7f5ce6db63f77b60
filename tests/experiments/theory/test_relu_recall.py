"""Based, Prop. F.16: attention with ReLU and two MLPs. Kills: a match that comes later."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.theory.relu_recall import matrices, solve
from tests.experiments.theory import triples

pytestmark = pytest.mark.full


@pytest.mark.parametrize(("bits", "n"), [(3, 14)])
def test_every_answer(bits, n):
    """Kills: a query that matches its own or a later key, W_2 as printed, a sum of two matches, an answer to a query
    without a match, values one row off."""
    rng = np.random.default_rng(0)
    keys, values, queries = triples.draw(rng, batch_size=20, n_triples=n, n_tokens=2**bits)
    tokens = np.stack([keys, values, queries], axis=2).reshape(20, -1)
    u = tokens[..., None] >> np.arange(bits) & 1
    y = np.asarray(jax.jit(solve)(jnp.asarray(u, jnp.float32)))
    expected = triples.solve(keys, values, queries)
    assert 50 < (expected == triples.NOTHING).sum() < 230
    signs = 2 * (expected[..., None] >> np.arange(bits) & 1) - 1
    np.testing.assert_array_equal(y[:, 2::3], np.where((expected == triples.NOTHING)[..., None], 0, signs))
    assert not y[:, 0::3].any()
    assert not y[:, 1::3].any()


def test_the_first_of_two_matches():
    """Kills: W_2[0, 0] = -1, which changes a match at another column than 0, and the second of two matches."""
    first, second, third = matrices(5)
    scores = np.array([[0, 1, 0, 1, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 0.0]])
    found = np.maximum(scores @ first @ second + 1, 0) @ third
    np.testing.assert_array_equal(found, [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
