"""Document starts, positions and masks from segment ids, against their definitions, position by position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.segments import seen_before


@pytest.mark.parametrize("t", [*(pytest.param(t, marks=pytest.mark.full) for t in (0, 1, 2)), 17])
@pytest.mark.parametrize("packed", [False, True])
def test_seen_before(t, packed):
    """Kills: a first appearance taken for a second, ids of another document or row, ids below 0, an order of documents
    that is not that of their ids."""
    rng = np.random.default_rng(t)
    tokens = rng.integers(-2, 5, size=(3, t))
    lengths = [t // 3, t // 3, t - 2 * (t // 3)]
    ids = np.stack([np.repeat(rng.permutation(9)[:3] - 4, lengths) for _ in range(3)])
    expected = [
        [
            any(tokens[r, j] == tokens[r, i] and (not packed or ids[r, j] == ids[r, i]) for j in range(i))
            for i in range(t)
        ]
        for r in range(3)
    ]
    found = jax.jit(seen_before)(jnp.asarray(tokens, jnp.int32), jnp.asarray(ids, jnp.int32) if packed else None)
    np.testing.assert_array_equal(found, np.array(expected, bool).reshape(3, t))
