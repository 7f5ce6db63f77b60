"""The TPU kernels of sliding-window attention behind our contract, interpreted on a CPU against float64."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.sliding_window import mosaic_tpu
from pallas_kernels.sliding_window.api import BACKENDS
from tests.pallas_kernels.shared import all_shapes, full, slow
from tests.pallas_kernels.sliding_window.cases import Call, check_contract, problem

HEADS = functools.partial(Call, b=2, h=4, g=4, k=32, v=32)
TWO_HEADS = functools.partial(HEADS, h=2, g=2)


check = functools.partial(check_contract, mosaic_tpu)


@pytest.mark.parametrize(
    ("t", "window"),
    [
        (300, 129),
        full(129, 128),
        slow(1, 1),
        slow(127, 64),
        slow(63, 16),
        slow(257, 65),
        slow(513, 1),
        slow(513, 192),
        slow(513, 256),
    ],
)
def test_values_and_gradients(t, window):
    """Kills a window one off, a part of a folded tile that is taken for the other, keys of a chunk that does not exist
    or is another distance away, and dk and dv that lose what the next chunk, the next block, or the last, sends."""
    check(HEADS(t=t, window=min(window, t)))


@pytest.mark.full
@pytest.mark.parametrize(
    ("t", "window", "past", "start"),
    [(140, 20, 19, [0, 19]), slow(1, 64, 63, None), slow(200, 200, 199, [3, 160]), slow(130, 128, 64, [64, 0])],
)
def test_tokens_before_some_of_which_do_not_exist(t, window, past, start):
    """Kills an offset of the mask by a token or a block, and slots seen before they are written."""
    check(HEADS(t=t, window=window), past=past, start=start)


@pytest.mark.slow
@pytest.mark.parametrize(("h", "d"), [full(1, 32), full(24, 64), slow(16, 128), slow(3, 112), slow(80, 24), slow(6, 8)])
def test_heads(h, d):
    """Kills lanes or rows of lse of another head, of the one beside it or none, and of another step of the grid."""
    check(Call(t=150, window=40, b=1, h=h, g=h, k=d, v=d))


@pytest.mark.slow
@pytest.mark.parametrize("window", [full(64), slow(200)])
def test_bfloat16(window):
    """Kills bfloat16 sums or softmax: weights, their cotangents and the results round by 2e-3 each."""
    check(TWO_HEADS(t=260, window=window, dtype=jnp.bfloat16), tolerances=(4e-3, 4e-3))


REFUSED = [
    ({"dtype": "float16"}, "dtype float16"),
    ({"k": 60, "v": 60}, "head_dims 60 of keys and 60 of values"),
    ({"v": 32}, "head_dims 64 of keys and 32 of values"),
    ({"g": 1}, "1 key/value heads are fewer than 2"),
    ({"window": 257}, "window=257 is more than 256"),
    ({"segments": True}, "segment_ids"),
    ({"h": 17, "g": 17}, "17 heads are too many for a step"),
]


def test_refusals():
    """Kills an operand that is ignored, and a shape that fails only when it is compiled."""
    assert BACKENDS["mosaic_tpu"].objection(problem()) is None
    for change, reason in REFUSED:
        assert reason in BACKENDS["mosaic_tpu"].objection(problem(**change))


def test_nothing_in_another_layout():
    """Kills an operand that is transposed or padded before the kernel: whole blocks are only reshaped."""
    tokens = [jax.ShapeDtypeStruct((2, 256, 4, 64), jnp.bfloat16)] * 3
    backend = BACKENDS["mosaic_tpu"]

    def both(q, k, v):
        options = {"window": 64, "scale": 0.125}
        y, lse = backend.forward(q, k, v, None, None, **options)
        return backend.backward(q, k, v, None, None, y, lse, y, **options)

    whole = [x for x in all_shapes(jax.make_jaxpr(both)(*tokens).jaxpr) if math.prod(x) >= 2 * 256 * 4 * 64]
    assert set(whole) == {(2, 256, 4, 64), (2, 256, 256)}
