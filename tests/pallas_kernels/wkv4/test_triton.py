"""Triton kernels of wkv4: values by Triton's interpreter, and which pieces a piece sees."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.wkv4 import triton
from tests.pallas_kernels.triton_cases import check_interpreted


@pytest.mark.slow
def test_values_and_gradients():
    """Kills pieces that are put together in the wrong order or with the decay of another length; a document that sees
    the one before it; padding that decays a state, rescales cotangents or adds to dw; a last state whose cotangent is
    lost."""
    check_interpreted("wkv4")


def test_pieces_of_a_document():
    """Kills a piece that sees past the start of a document, by brute force: from both ends of a row."""
    rng = np.random.default_rng(0)
    k = jnp.zeros((20, 330, 3), jnp.float32)
    length, keep = triton._length(k), (rng.random((20, 330)) > 0.008).astype(np.float32)
    assert (length, triton._pieces(k)) == (64, 6)
    low, high = (np.asarray(x) for x in triton._seen(k, jnp.asarray(keep)))
    for row, piece in np.ndindex(low.shape):
        starts = np.flatnonzero(keep[row] == 0) // length
        earlier, later = starts[starts < piece], starts[starts > piece]
        assert low[row, piece] == (earlier.max() if earlier.size else -1)
        assert high[row, piece] == (later.min() + 1 if later.size else 7)
