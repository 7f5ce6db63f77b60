"""Taylor attention on real GPUs and TPUs, through the public functions: `tests/device.py` says how.

The grid against the float64 reference, which runs on the host; real sizes against `xla`; the same bits on every run,
which a race between warpgroups or copies would not give.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.taylor_attention import TaylorState, taylor_attention, taylor_attention_step
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.workloads import SHAPES
from tests.device import DEVICES, on_cpu
from tests.pallas_kernels.shared import MARKERS, assert_close
from tests.pallas_kernels.taylor_attention.cases import Call, measured, rounded, truth

KERNELS = {"gpu": "mosaic_gpu", "tpu": "mosaic_tpu"}
LENGTHS = (0, 1, 15, 16, 63, 64, 65, 127, 200, 513)
HEAD = functools.partial(Call, t=0, h=3, g=3, k=16, v=64)
GRID = {
    "plain": HEAD(),
    "decay_grouped": HEAD(b=3, g=1, decay=True, eps=0.3),
    "raw": HEAD(normalize=False, decay=True),
    "stateless": HEAD(b=5, h=1, g=1, state=False),
    "narrow": HEAD(k=8, v=32),
    "wide": HEAD(v=128),
    "keys_24": HEAD(k=24, g=1, decay=True),
    "keys_32": HEAD(k=32, v=96),
    "large_scores": HEAD(size=2.5, state=False),
}
# (outputs and states, gradients): bfloat16 as in interpret mode, `test_mosaic_gpu.py` and `test_mosaic_tpu.py`, where
# each number has its reason; float32 as style demands: both multiply it in passes of bfloat16.
BOUNDS = {
    "gpu": {"bfloat16": (4e-3, 8e-3), "float32": (1e-5, 1e-4)},
    "tpu": {"bfloat16": (1e-2, 1e-2), "float32": (1e-5, 1e-4)},
}
REAL = {
    **SHAPES["headline"],
    **SHAPES["float32"],
    "b3_h5_t4097": Problem(b=3, t=4097, h=5, k=16, v=64),
    "b2_h16_g4_v128_t2048": Problem(b=2, t=2048, h=16, g=4, k=16, v=128),
    "b2_h16_k24_t4097": Problem(b=2, t=4097, h=16, k=24, v=64),
    "b4_h16_k32_t2048": Problem(b=4, t=2048, h=16, k=32, v=64),
}


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("setting", GRID)
def test_values_states_gradients(device, setting, t):
    """Kills what interpret mode cannot reach: operands of wgmma in registers, TMA beyond the end, real barriers."""
    call = dataclasses.replace(GRID[setting], t=t)
    for dtype, (outputs_bound, gradients_bound) in BOUNDS[device].items():
        if (device, dtype) == ("gpu", "float32") and call.k > 16:
            continue  # refused
        arrays, cotangents = rounded(call, dtype)
        outputs, gradients = measured(
            call, dtype=dtype, arrays=arrays, cotangents=cotangents, implementation=KERNELS[device]
        )
        with on_cpu():
            expected, expected_gradients = truth(call, arrays, cotangents)
        assert_close(outputs, expected, outputs_bound)
        if t == 1 and not call.state:  # y = v: what q gets is the rounding of dy.v - dy.y
            dq, *gradients = (np.asarray(x, np.float64) for x in gradients)
            assert np.linalg.norm(dq) <= gradients_bound * np.linalg.norm(cotangents[0])
            expected_gradients = expected_gradients[1:]
        assert_close(gradients, expected_gradients, gradients_bound)


@pytest.mark.parametrize("setting", ["plain", "decay_grouped", "raw"])
def test_xla_is_exact_there_too(device, setting):
    """Kills products of float32 that a device rounds to tf32 or bfloat16."""
    call = dataclasses.replace(GRID[setting], t=200)
    outputs, gradients = measured(call, implementation="xla")
    with on_cpu():
        expected, expected_gradients = truth(call)
    assert_close(outputs, expected, 1e-5)
    assert_close(gradients, expected_gradients, 1e-4)


def test_steps_continue_a_sequence(device):
    """Kills a state of the kernel that the step reads differently, and steps that round float32 sums."""
    call, dtype = HEAD(t=67, g=1, decay=True), jnp.bfloat16
    arrays, _ = rounded(call, dtype)
    q, k, v = (jnp.asarray(x, dtype) for x in arrays[:3])
    state, decay = TaylorState(*(jnp.asarray(x, jnp.float32) for x in arrays[3:])), jnp.asarray(call.rates)
    _, state = jax.jit(functools.partial(taylor_attention, return_state=True, implementation=KERNELS[device]))(
        q[:, :64], k[:, :64], v[:, :64], decay=decay, initial_state=state
    )
    step, ys = jax.jit(taylor_attention_step), []
    for i in range(64, 67):
        y, state = step(state, q[:, i], k[:, i], v[:, i], decay=decay)
        ys.append(y)
    with on_cpu():
        (expected, *expected_state), _ = truth(call, arrays)
    assert_close([jnp.stack(ys, axis=1), *state], [expected[:, 64:], *expected_state], BOUNDS[device]["bfloat16"][0])


def value_and_gradients(arrays, cotangent, decay, **options):
    def run(arrays, cotangent):
        attend = functools.partial(taylor_attention, decay=decay, return_state=True, **options)
        (y, state), pull_back = jax.vjp(attend, *arrays)
        return [y, *state], pull_back((cotangent, jax.tree.map(jnp.zeros_like, state)))

    return jax.jit(run).lower(arrays, cotangent).compile()


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("name", REAL)
def test_real_sizes(device, name, decay):
    """Kills errors of many chunks, segments and waves of blocks; races; and a choice that is not the kernel."""
    spec = REAL[name]
    dy = jax.random.normal(jax.random.key(1), (spec.b, spec.t, spec.h, spec.v)).astype(spec.dtype)
    rates = jnp.linspace(0.9, 1.0, spec.h) if decay else None
    arrays = (spec.inputs(), dy)
    chosen = value_and_gradients(*arrays, rates)
    assert MARKERS[{"gpu": "cuda", "tpu": "tpu"}[device]] in chosen.as_text()
    outputs, gradients = results = chosen(*arrays)
    by_name = value_and_gradients(*arrays, rates, implementation=KERNELS[device])
    for _ in range(5):
        jax.tree.map(np.testing.assert_array_equal, by_name(*arrays), results)
    expected, expected_gradients = value_and_gradients(*arrays, rates, implementation="xla")(*arrays)
    outputs_bound, gradients_bound = BOUNDS[device][spec.dtype_name]
    assert_close(outputs, expected, outputs_bound)
    assert_close(gradients, expected_gradients, gradients_bound)
