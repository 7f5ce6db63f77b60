"""JAX's splash attention behind our contract, forward and backward, interpreted on CPU against float64."""

import functools

import pytest

from pallas_kernels.sliding_window import splash_tpu
from tests.pallas_kernels.shared import full
from tests.pallas_kernels.sliding_window.cases import Call, check_contract

check = functools.partial(check_contract, splash_tpu)


@pytest.mark.parametrize(
    "call",
    [
        full(Call(t=200, window=64, b=2, h=4, g=2, k=64, v=64, segments=True)),
        full(Call(t=1, window=1, b=1, h=1, g=1, k=8, v=16)),
        pytest.param(Call(t=300, window=200, b=1, h=2, g=2, k=128, v=128, scale=0.3), marks=pytest.mark.slow),
        pytest.param(Call(t=513, window=16, b=1, h=2, g=1, k=96, v=64), marks=pytest.mark.slow),
    ],
    ids=["grouped", "one_token", "wide", "several_blocks"],
)
def test_values_and_gradients(call):
    """Kills a window one off, a scale that is lost or applied twice, padded tokens that are seen, swapped groups."""
    check(call)


@pytest.mark.slow
def test_tokens_before_some_of_which_do_not_exist():
    """Kills an offset of the mask by a token, and slots seen before they are written; rows at three positions."""
    check(Call(t=140, window=20, b=3, h=2, g=1, k=8, v=8), past=19, start=[0, 7, 19])


@pytest.mark.full
def test_block_sizes():
    """Hand-worked: padded to blocks of 512 if that adds a quarter at the most, else smaller."""
    sizes = {1: 128, 129: 256, 384: 128, 400: 512, 513: 256, 600: 256, 1025: 256, 8192: 512}
    assert {t: splash_tpu.block_size(t) for t in sizes} == sizes
