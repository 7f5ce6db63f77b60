"""Devices of workers. Kills: workers that reserve a GPU that others use."""

import pytest

from jaxzoo.sweep.workers import Device, as_one_program

MEMORY = "XLA_PYTHON_CLIENT_PREALLOCATE"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", MEMORY):
        monkeypatch.delenv(name, raising=False)


def test_workers_share_the_gpus_in_turn(monkeypatch):
    """Kills: a worker that reserves the memory of a GPU that others use, a GPU that was hidden, a setting of the user's
    that is lost."""
    two = Device("gpu", 2, "two GPUs")
    assert two.n_workers == 2
    assert [two.environment(worker)["CUDA_VISIBLE_DEVICES"] for worker in range(3)] == ["0", "1", "0"]
    assert two.environment(0)[MEMORY] == "false"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    monkeypatch.setenv(MEMORY, "true")
    assert two.environment(1) == {"CUDA_VISIBLE_DEVICES": "3", MEMORY: "true"}


def test_other_devices():
    """Kills: several workers for the chips of one TPU, a worker on a CPU that uses all cores or looks for a GPU."""
    assert Device("tpu", 4, "a TPU").n_workers == 1
    assert Device("tpu", 4, "a TPU").environment(0) == {}
    assert Device("cpu", 1, "two cores").n_workers >= 1
    assert Device("cpu", 1, "two cores").environment(0) == {"JAX_PLATFORMS": "cpu", "NPROC": "1"}


@pytest.mark.parametrize(
    ("parallel", "platform", "expected"),
    [
        ("auto", "cpu", False),
        ("auto", "gpu", True),
        ("auto", "tpu", True),
        ("vmap", "cpu", True),
        ("processes", "gpu", False),
    ],
)
def test_runs_are_vmapped_on_accelerators(parallel, platform, expected):
    """Kills: runs vmapped on a CPU, or trained one after the other on an accelerator."""
    assert as_one_program(parallel, platform) == expected
