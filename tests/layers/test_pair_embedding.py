"""Embedding of pairs against its equation in float64."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.layers.pair_embedding import PairEmbedding
from tests.mixers.moved import moved, quick_rngs


def test_equation():
    """Kills: a key with a value where it has none, a value or key off by one, both in the other order, an id outside of
    the pairs that gives another one."""
    made, p = moved(lambda: PairEmbedding(3, 4, n_rows=8, width=6, rngs=quick_rngs()))
    keys, values = (np.float64(table[...]) for table in (made.keys, made.values))
    pairs = [(key, value) for key in range(3) for value in (None, 0, 1, 2, 3)]
    rows = [np.concatenate([keys[k], np.zeros(6) if v is None else values[v]]) for k, v in pairs]
    expected = np.stack(rows) @ p["in_proj.kernel"] + p["in_proj.bias"]
    found = nnx.jit(PairEmbedding.__call__)(made, jnp.asarray([[*range(15), 15, -1]]))
    np.testing.assert_allclose(found[0, :15], expected, atol=1e-5)
    assert bool(jnp.isnan(found[0, 15:]).all())
