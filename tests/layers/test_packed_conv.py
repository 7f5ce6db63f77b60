"""The convolution of packed documents against a loop over documents, tokens and taps in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.causal_conv import MAX_DIRECT_TAPS, causal_conv, empty_history
from jaxzoo.layers.packed_conv import BLOCK, MAX_MATRIX
from tests.pallas_kernels.shared import full

B, D = 3, 2
WIDTHS = [1, 3, MAX_DIRECT_TAPS, MAX_DIRECT_TAPS + 1, MAX_DIRECT_TAPS + 2, 40, 400]
LAYOUTS = {
    "nothing": [[], [], []],
    "one token": [[1], [1], [1]],
    "less than a block": [[5], [2, 3], [1, 1, 1, 1, 1]],
    "odd": [[77], [1, 1, 3, 7, 1, 64], [5, 32, 9, 31]],
    "starts at midpoints": [[32, 32], [16, 8, 8, 16, 16], [31, 1, 1, 31]],
    "last block cut": [[1, 16], [17], [9, 8]],
    "long": [[295], [63, 1, 191, 40], [128, 128, 39]],
}
"""Lengths of the documents of each row. "long" has levels on both sides of MAX_MATRIX."""


def ids_of(layout):
    """Distinct ids in no order: 0, 5, 10, 2, 7, 1, ..., turned in each row."""
    rows = [np.repeat([(5 * i + r) % 13 for i in range(len(row))], row) for r, row in enumerate(layout)]
    return jnp.asarray(np.stack(rows), jnp.int32)


def truth(x, taps, dy, layout):
    """y and the gradients of `sum y dy` in x and taps, document by document and lag by lag."""
    y, dx, dtaps = np.zeros_like(x), np.zeros_like(x), np.zeros_like(taps)
    for r, lengths in enumerate(layout):
        for stop, length in zip(np.cumsum(lengths), lengths, strict=True):
            start = stop - length
            for a in range(min(length, len(taps))):
                now, then = slice(start + a, stop), slice(start, stop - a)
                y[r, now] += taps[a] * x[r, then]
                dx[r, then] += taps[a] * dy[r, now]
                dtaps[a] += (x[r, then] * dy[r, now]).sum(axis=0)
    return y, dx, dtaps


def make_inputs(layout, w, seed=0):
    """x, taps, dy; float64 values that float32 holds."""
    rng = np.random.default_rng(seed)
    t = sum(layout[0])
    shapes = ((B, t, D), (w, D), (B, t, D))
    return [rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in shapes]


@jax.jit
def packed(x, taps, ids):
    return causal_conv(x, taps, segment_ids=ids)


@jax.jit
def packed_with_gradients(x, taps, ids, dy):
    y, pull = jax.vjp(lambda x, taps: packed(x, taps, ids), x, taps)
    return y, *pull(dy)


def relative_l2(actual, expected):
    return np.linalg.norm(np.asarray(actual, np.float64) - expected) / np.linalg.norm(expected)


def layouts_and_widths():
    """Each form of the op is core; each other layout with one width is full."""
    odd = MAX_DIRECT_TAPS + 1
    core = [("long", odd), ("odd", 3), ("last block cut", 40)]
    more = [("nothing", 3), ("one token", odd), ("less than a block", 400), ("starts at midpoints", odd)]
    more += [("odd", 1), ("long", odd + 1), ("long", 400)]
    return [*core, *(full(*pair) for pair in more)]


@pytest.mark.parametrize(("name", "w"), layouts_and_widths())
def test_documents_do_not_reach_one_another(name, w):
    """Kills a level without mask, a document that crosses a midpoint at which another one starts, a lag off by
    one, a reach of 8 tokens for lags up to 9, pairs counted at two levels or none, each in the gradients too."""
    layout = LAYOUTS[name]
    x, taps, dy = make_inputs(layout, w)
    x32, taps32, dy32 = (jnp.asarray(a, jnp.float32) for a in (x, taps, dy))
    actual, expected = packed_with_gradients(x32, taps32, ids_of(layout), dy32), truth(x, taps, dy, layout)
    # A sum of n terms of size 1 is of size sqrt(n): 1e-5 of it for values, 1e-4 for gradients, over up to 400 terms.
    for a, e, tolerance in zip(actual, expected, (1e-5, 1e-4, 1e-4), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * max(1, np.abs(e).max(initial=0)))


def test_the_layouts_reach_every_form():
    """Kills tests that pass by without a level by matrix, by transform, or with a filter shorter than its half."""
    lengths = [sum(layout[0]) for layout in LAYOUTS.values()]
    assert min(WIDTHS) < BLOCK < 40 < MAX_MATRIX < 128 < max(lengths) < max(WIDTHS)
    assert {0, 1} <= set(lengths)


@pytest.mark.full
@pytest.mark.parametrize("w", [3, 40])
def test_an_id_that_returns_is_another_document(w):
    """Kills two documents that become one where a loader numbers them 0, 1, 0, 1; the same for short and long."""
    layout = [[20, 21, 20]] * B
    x, taps, dy = make_inputs(layout, w)
    ids = jnp.asarray(np.repeat([0, 1, 0], layout[0]), jnp.int32)[None].repeat(B, axis=0)
    y = packed(jnp.asarray(x, jnp.float32), jnp.asarray(taps, jnp.float32), ids)
    np.testing.assert_allclose(y, truth(x, taps, dy, layout)[0], rtol=0, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("w", [pytest.param(3, marks=pytest.mark.full), 400])
def test_nan_stays_in_its_document(w):
    """Kills masks by multiplication: one document's overflow would spoil the others and every gradient."""
    layout = LAYOUTS["long"]
    x, taps, _ = make_inputs(layout, w)
    x[1, 63:64] = np.nan
    y, dx, _ = packed_with_gradients(
        jnp.asarray(x, jnp.float32), jnp.asarray(taps, jnp.float32), ids_of(layout), jnp.ones((B, 295, D))
    )
    spoilt = np.isnan(np.asarray(y)).any(axis=-1)
    assert spoilt[1, 63]
    assert spoilt.sum() == 1
    assert np.isfinite(dx).all()


@pytest.mark.full
@pytest.mark.parametrize("w", [5, 40])
def test_bfloat16(w):
    """Kills sums in bfloat16: the output differs by its own rounding alone, at most 2^-9 relative."""
    layout = LAYOUTS["odd"]
    x, taps, dy = make_inputs(layout, w)
    short = jnp.asarray(x, jnp.bfloat16)
    y = packed(short, jnp.asarray(taps, jnp.float32), ids_of(layout))
    assert y.dtype == jnp.bfloat16
    assert relative_l2(y, truth(np.asarray(short, np.float64), taps, dy, layout)[0]) <= 2**-9


@pytest.mark.parametrize("w", [pytest.param(3, marks=pytest.mark.full), 40])
def test_refusals(w):
    """Kills ids that broadcast, ids of floats, and a history that would enter documents at random."""
    layout = LAYOUTS["odd"]
    x, taps, _ = (jnp.asarray(a, jnp.float32) for a in make_inputs(layout, w))
    ids = ids_of(layout)
    with pytest.raises(ValueError, match=r"segment_ids int32\[1, 77\] must be int32\[3, 77\], one for each token"):
        causal_conv(x, taps, segment_ids=ids[:1])
    with pytest.raises(ValueError, match=r"segment_ids float32\[3, 77\] must be int32\[3, 77\]"):
        causal_conv(x, taps, segment_ids=ids.astype(jnp.float32))
    with pytest.raises(ValueError, match="segment_ids with a history, which does not say whose its inputs are"):
        causal_conv(x, taps, empty_history(B, w, D), segment_ids=ids)
