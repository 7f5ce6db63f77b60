"""Tensor maps of the Hopper kernels are valid for the CUDA driver, which checks them only at the launch."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from pallas_kernels.compile_check.launch import Launch, read_launch
from pallas_kernels.compile_check.targets import Target
from pallas_kernels.programs import kernels
from pallas_kernels.sliding_window.problem import Problem as Window
from pallas_kernels.sliding_window.workloads import WORKLOADS as WINDOW
from pallas_kernels.taylor_attention.problem import Problem as Taylor
from pallas_kernels.taylor_attention.workloads import WORKLOADS as TAYLOR
from tests.pallas_kernels.aot import absent_devices
from tests.pallas_kernels.shared import full, slow


def launches_of(op, problem, target: Target) -> list[Launch]:
    """Launches of the forward and backward kernels at a shape."""
    workload = op.workload("shape", problem, "forward_backward")
    sharding = SingleDeviceSharding(target.devices()[0])
    inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), workload.abstract_inputs()
    )
    run = workload.build("mosaic_gpu")
    lowered = jax.jit(run).trace(*inputs).lower(lowering_platforms=("cuda",))
    return [read_launch(text) for text in {kernel.key: kernel.text for kernel in kernels(lowered)}.values()]


def check(found: list[Launch], *, kernels: int) -> None:
    assert len(found) >= kernels
    for launch in found:
        assert launch.tensor_maps
        assert [problem for x in launch.tensor_maps for problem in x.problems()] == []


@pytest.mark.parametrize(
    ("t", "d", "window", "g", "kernels"),
    [
        full(1000, 96, 64, 2, 3),
        *(slow(1000, d, 64, 2, 2) for d in (16, 32, 48, 64)),
        *(slow(1000, d, 64, 4, 2) for d in (80, 112)),
        slow(1000, 128, 64, 2, 3),
        slow(1, 112, 64, 2, 3),
        slow(65, 112, 128, 2, 3),
        slow(3001, 80, 1024, 2, 3),
    ],
)
def test_window(t, d, window, g, kernels, monkeypatch):
    """Kills a box wider than its swizzle (d = 96, 112), strides of odd lengths, and a rank too high by tiling."""
    target = absent_devices("h100", monkeypatch)
    problem = Window(b=2, t=t, h=4, g=g, k=d, v=d, window=window, dtype=jnp.bfloat16)
    check(launches_of(WINDOW, problem, target), kernels=kernels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("t", "k", "v", "dtype"),
    [
        (1, 16, 64, jnp.bfloat16),
        (65, 8, 64, jnp.bfloat16),
        (1000, 16, 64, jnp.bfloat16),
        (1000, 8, 96, jnp.bfloat16),
        (1001, 16, 96, jnp.bfloat16),
        (1001, 5, 40, jnp.bfloat16),
        (1001, 24, 64, jnp.bfloat16),
        (1000, 32, 40, jnp.bfloat16),
        (1001, 16, 64, jnp.float32),
        (65, 5, 40, jnp.float32),
    ],
)
def test_taylor(t, k, v, dtype, monkeypatch):
    """Kills the same where time, features or values are padded."""
    target = absent_devices("h100", monkeypatch)
    problem = Taylor(b=2, t=t, h=4, g=2, k=k, v=v, dtype=dtype)
    check(launches_of(TAYLOR, problem, target), kernels=3)
