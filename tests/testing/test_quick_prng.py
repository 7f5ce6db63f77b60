"""The generator of small test arrays. Kills: two streams that are equal or shifted."""

import jax
import numpy as np
import pytest

from jaxzoo.testing.quick_prng import QUICK_PRNG


@pytest.mark.full
def test_streams_are_independent():
    """Kills: keys that are the same whatever is folded in, or neighbours whose streams are one stream, shifted; a split
    into equal keys, or into those of a fold; numbers that are not uniform."""
    key = jax.random.key(3, impl=QUICK_PRNG)
    keys = [
        key,
        *(jax.random.fold_in(key, i) for i in range(3)),
        *jax.random.split(key, 3),
        jax.random.key(4, impl=QUICK_PRNG),
    ]
    x = np.stack([np.asarray(jax.random.uniform(k, (4000,))) for k in keys])
    np.testing.assert_allclose(x.mean(1), 0.5, atol=0.02)
    np.testing.assert_allclose(x.std(1), 12**-0.5, atol=0.01)
    for shift in (0, 1, 2):
        found = np.corrcoef(x[:, shift:], x[:, : x.shape[1] - shift])[: len(x), len(x) :]
        np.testing.assert_allclose(found, np.eye(len(x)) if shift == 0 else 0, atol=0.08)
