"""Every kind of workload computes what its name says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.taylor_attention import taylor_attention
from pallas_kernels.taylor_attention.workloads import GROUPS, WORKLOADS
from tests.pallas_kernels.tiny import TAYLOR


@pytest.mark.slow
@pytest.mark.parametrize("name", TAYLOR)
def test_forward_backward_are_output_and_gradients(name):
    forward, both = (WORKLOADS.workload(name, TAYLOR[name], kind) for kind in ("forward", "forward_backward"))
    q, k, v, dy = both.inputs(0)
    y, gradients = both.build("xla")(q, k, v, dy)
    np.testing.assert_array_equal(y, forward.build("xla")(q, k, v))
    direction = jax.random.normal(jax.random.key(9), q.shape)
    slope = jax.jvp(lambda q: taylor_attention(q, k, v, implementation="reference"), (q,), (direction,))[1]
    np.testing.assert_allclose(jnp.vdot(gradients[0], direction), jnp.vdot(slope, dy), rtol=1e-4)
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]


@pytest.mark.full
def test_step_reads_and_writes_a_state():
    step = WORKLOADS.workload("tiny", TAYLOR["tiny"], "step")
    state, *token = step.inputs(0)
    y, after = step.build(None)(state, *token)
    assert y.shape == token[2].shape
    assert not np.array_equal(after.s, state.s)
    with pytest.raises(NotImplementedError, match="must be 'xla' or None"):
        step.build("mosaic_gpu")


@pytest.mark.full
def test_groups_are_made_without_arrays():
    for group in GROUPS.values():
        for entry in group:
            assert entry.abstract_inputs()
            assert entry.flops > 0
            assert entry.bytes > 0
