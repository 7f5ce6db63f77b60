"""Which implementation a program takes, and what is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.wkv4 import wkv4
from pallas_kernels.wkv4.problem import Problem
from tests.pallas_kernels.shared import MARKERS, PLATFORMS, lowered


@pytest.mark.full
@pytest.mark.parametrize("platform", PLATFORMS)
def test_kernels_are_taken_forward_and_backward(platform):
    """Kills a kernel that the platform does not choose, or that makes other shapes than xla."""
    problem = Problem(b=1, t=40, d=512)

    def loss(k, v):
        y, state = wkv4(k, v, *problem.parameters(), return_state=True)
        return y.astype(jnp.float32).sum() + state.num.sum()

    with lowering_for(platform):
        assert lowered(jax.value_and_grad(loss), problem.inputs(), platform).count(MARKERS[platform]) >= 2


def test_a_kernel_that_is_asked_for_objects():
    """Kills a name that falls back."""
    k, w = np.zeros((1, 3, 100), np.float32), np.zeros((100,), np.float32)
    with pytest.raises(NotImplementedError, match="mosaic_tpu: 100 channels have no divisor"):
        wkv4(k, k, w, w, implementation="mosaic_tpu")
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: channels 100 are .*; use implementation='xla'"):
        wkv4(k, k, w, w, implementation="mosaic_gpu")
