"""Which implementation a program takes, and what is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.selective_scan import selective_scan
from pallas_kernels.selective_scan.problem import Problem
from tests.pallas_kernels.shared import MARKERS, PLATFORMS, lowered


@pytest.mark.full
@pytest.mark.parametrize("platform", PLATFORMS)
def test_kernels_are_taken_forward_and_backward(platform):
    """Kills: a kernel that the platform does not choose, or that makes other shapes than xla."""
    problem = Problem(b=1, t=40, d=256, n=16)

    def loss(*arrays):
        y, state = selective_scan(*arrays[:2], problem.rates(), *arrays[2:], return_state=True)
        return y.astype(jnp.float32).sum() + state.sum()

    with lowering_for(platform):
        assert lowered(jax.value_and_grad(loss), problem.inputs(), platform).count(MARKERS[platform]) >= 2


def test_a_kernel_that_is_asked_for_objects():
    """Kills a name that falls back."""
    x, a, b = np.zeros((1, 3, 100), np.float32), np.zeros((100, 16), np.float32), np.zeros((1, 3, 16), np.float32)
    with pytest.raises(NotImplementedError, match="mosaic_tpu: 100 channels are no multiple of 256"):
        selective_scan(x, x, a, b, b, implementation="mosaic_tpu")
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        selective_scan(x, x, a, b, b, implementation="mosaic_gpu")
