"""Tests on real devices: `JAX_PLATFORMS=cuda python -m pytest -m gpu` and `JAX_PLATFORMS=tpu python -m pytest -m tpu`.

Elsewhere they skip (`conftest.py` asks for every test with these markers); on a machine that has the device, they fail
until JAX uses it.
"""

import glob

import jax
import pytest
from jax._src import hardware_utils

DEVICES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("gpu", "tpu")]
"""Parameters of fixtures, `pytest.fixture(params=DEVICES)`; the markers deselect all of them by default."""

COMMANDS = {"gpu": "JAX_PLATFORMS=cuda python -m pytest -m gpu", "tpu": "JAX_PLATFORMS=tpu python -m pytest -m tpu"}


def is_attached(platform: str) -> bool:
    """Returns whether the machine has the device, used by JAX or not."""
    if platform == "gpu":
        return bool(glob.glob("/dev/nvidia[0-9]*"))
    return hardware_utils.num_available_tpu_chips_and_device_id()[0] > 0


def require(platform: str) -> None:
    """Skips the test where JAX does not run on `platform`; fails it where it could."""
    backend = jax.default_backend()
    if backend == platform:
        return
    if is_attached(platform):
        pytest.fail(f"this machine has a {platform} and JAX runs on {backend}: {COMMANDS[platform]}")
    pytest.skip(f"needs a {platform}, JAX runs on {backend}: {COMMANDS[platform]}")


def on_cpu():
    """Context manager that places arrays and programs on the host, for float64 references."""
    return jax.default_device(jax.devices("cpu")[0])
