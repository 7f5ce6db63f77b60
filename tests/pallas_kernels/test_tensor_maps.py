"""What the Hopper kernels ask TMA for is what the CUDA driver takes: seen at the launch only, so checked here."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from pallas_kernels.compile_check.targets import Target
from pallas_kernels.compile_check.worker import launches
from pallas_kernels.schedule_model.launch import Launch
from pallas_kernels.sliding_window.problem import Problem as Window
from pallas_kernels.sliding_window.workloads import WINDOW
from pallas_kernels.taylor_attention.problem import Problem as Taylor
from pallas_kernels.taylor_attention.workloads import TAYLOR
from tests.pallas_kernels.aot import absent_devices


def launches_of(op, problem, kind, target: Target) -> list[Launch]:
    """Of the kernels at a shape."""
    workload = op.workload("shape", problem, kind)
    sharding = SingleDeviceSharding(target.devices()[0])
    inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), workload.abstract_inputs()
    )
    run = workload.build("mosaic_gpu")
    return list(launches(jax.jit(run).trace(*inputs).lower(lowering_platforms=("cuda",))).values())


def check(found: list[Launch], *, kernels: int) -> None:
    assert len(found) >= kernels
    for launch in found:
        assert launch.tensor_maps
        assert [problem for x in launch.tensor_maps for problem in x.problems()] == []


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("t", "d", "window"),
    [
        (1000, 96, 64),
        *(
            pytest.param(t, d, 64, marks=SLOW)
            for d in range(16, 129, 16)
            for t in (1, 65, 1000)
            if (t, d) != (1000, 96)
        ),
        pytest.param(65, 112, 128, marks=SLOW),
        pytest.param(3001, 80, 1024, marks=SLOW),
    ],
)
def test_window(t, d, window, monkeypatch):
    """Kills a box wider than its swizzle (d = 96, 112), strides of odd lengths, and a rank too high by tiling."""
    target = absent_devices("h100", monkeypatch)
    problem = Window(b=2, t=t, h=4, g=2, k=d, v=d, window=window, dtype=jnp.bfloat16)
    check(launches_of(WINDOW, problem, "forward_backward", target), kernels=3)


@pytest.mark.parametrize(
    ("t", "k", "v", "kind", "kernels"),
    [
        (1001, 16, 96, "forward", 1),
        *(
            pytest.param(t, k, v, "forward_backward", 3, marks=SLOW)
            for t in (1, 65, 1001)
            for k, v in ((8, 64), (16, 64), (16, 96), (5, 40))
        ),
    ],
)
def test_taylor(t, k, v, kind, kernels, monkeypatch):
    """Kills the same where time, features or values are padded."""
    target = absent_devices("h100", monkeypatch)
    problem = Taylor(b=2, t=t, h=4, g=2, k=k, v=v, dtype=jnp.bfloat16)
    check(launches_of(TAYLOR, problem, kind, target), kernels=kernels)
