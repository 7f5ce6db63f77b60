"""ALiBi slopes and biases against hand-worked values."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.alibi import alibi_bias, alibi_slopes


@pytest.mark.parametrize(
    ("n_heads", "exponents"),
    [
        (3, [4, 8, 2]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes(n_heads: int, exponents: list[float]) -> None:
    """Kills: 2^(-8 i / n) used for every n, and the wrong half of the next power's slopes."""
    np.testing.assert_allclose(alibi_slopes(n_heads), [2.0**-e for e in exponents], rtol=1e-12)


def test_bias_follows_absolute_positions_of_each_row() -> None:
    """Kills: a sign error, and biases that ignore where a row stands."""
    bias = alibi_bias(2, jnp.array([[3, 4], [100_000, 100_001]]), jnp.array([[0, 3], [99_999, 100_001]]))
    distance = np.array([[[3, 0], [4, 1]], [[1, -1], [2, 0]]])
    expected = -np.array([1 / 16, 1 / 256])[None, :, None, None] * distance[:, None]
    np.testing.assert_array_equal(bias, expected)
