"""The workloads compute what their names say."""

import jax
import numpy as np
import pytest

from pallas_kernels.sliding_window.workloads import GROUPS, WORKLOADS
from tests.pallas_kernels.shared import assert_close
from tests.pallas_kernels.tiny import WINDOW


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forward", "forward_backward", "step"])
def test_implementations_agree_with_the_reference(kind):
    """Kills: another window, or a step that is not that of the cache."""
    work = WORKLOADS.workload("tiny", WINDOW["tiny_grouped"], kind)
    inputs = work.inputs(3)
    outputs, expected = (jax.tree.leaves(jax.jit(work.build(name))(*inputs)) for name in (None, "reference"))
    assert len(outputs) == {"forward": 1, "forward_backward": 4, "step": 4}[kind]
    assert_close(outputs, expected, 1e-5)


@pytest.mark.full
def test_a_step_runs_where_it_can():
    with pytest.raises(NotImplementedError, match="must be 'xla' or None"):
        WORKLOADS.workload("tiny", WINDOW["tiny"], "step").build("mosaic_gpu")


@pytest.mark.full
def test_groups_are_made_without_arrays():
    for group in GROUPS.values():
        for entry in group:
            assert entry.abstract_inputs()
            assert np.isfinite(entry.flops / entry.bytes)
