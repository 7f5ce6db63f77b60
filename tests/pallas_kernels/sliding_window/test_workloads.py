"""The workloads compute what their names say, and their floors are those of hand-counted cases."""

import jax
import numpy as np
import pytest

from pallas_kernels.sliding_window import specs
from pallas_kernels.sliding_window.specs import TINY, Spec
from pallas_kernels.sliding_window.workloads import GROUPS, WINDOW
from tests.pallas_kernels.shared import assert_close


@pytest.mark.parametrize("kind", ["forward", "forward_backward", "step"])
def test_implementations_agree_with_the_reference(kind):
    """Kills: another window, or a step that is not that of the cache."""
    work = WINDOW.workload("tiny", TINY["tiny_grouped"], kind)
    inputs = work.inputs(3)
    outputs, expected = (jax.tree.leaves(work.build(name)(*inputs)) for name in (None, "reference"))
    assert len(outputs) == {"forward": 1, "forward_backward": 4, "step": 4}[kind]
    assert_close(outputs, expected, 1e-5)


def test_a_step_runs_where_it_can():
    with pytest.raises(NotImplementedError, match="must be 'xla' or None"):
        WINDOW.workload("tiny", TINY["tiny"], "step").build("mosaic_gpu")


def test_floors_by_hand():
    """At 4 x 16 heads and 8192 tokens: 128 and 192 keys a query, 17 and 26 GFLOP, 268 MB."""
    narrow, wide = specs.HEADLINE.values()
    tokens = 4 * 16 * 8192
    assert (narrow.keys_met, wide.keys_met) == (128, 192)
    assert Spec(b=1, t=1, h=1, k=64, v=64, window=1).keys_met == 64
    assert narrow.forward_flops() == tokens * 128 * 2 * 128
    assert wide.backward_flops() == tokens * 192 * 2 * 320
    assert narrow.forward_bytes() == 4 * tokens * 64 * 2
    assert specs.STEP["step_b64_w64"].step_bytes() == 64 * 16 * 64 * 128 * 2


def test_groups_are_made_without_arrays():
    for group in GROUPS.values():
        for entry in group:
            assert entry.abstract_inputs()
            assert np.isfinite(entry.flops / entry.bytes)
