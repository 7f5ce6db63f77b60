"""Markers of tests on devices. Kills: a suite that skips everything on its own hardware."""

import jax
import pytest

from tests import device


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_a_device_that_is_there_cannot_be_skipped(platform, monkeypatch):
    """Kills: a suite that passes on its own hardware because it skipped everything there."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    device.require(platform)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(device, "is_attached", lambda name: name == platform)
    with pytest.raises(pytest.fail.Exception, match=f"has a {platform} and JAX runs on cpu: JAX_PLATFORMS="):
        device.require(platform)
    other = {"gpu": "tpu", "tpu": "gpu"}[platform]
    with pytest.raises(pytest.skip.Exception, match=f"needs a {other}, JAX runs on cpu: JAX_PLATFORMS="):
        device.require(other)


def test_hardware_is_looked_for():
    """Kills: a query of the hardware that fails on some machine, because JAX has moved the function."""
    assert device.is_attached("gpu") in (True, False)
    assert device.is_attached("tpu") in (True, False)


@pytest.mark.gpu
@pytest.mark.tpu
def test_markers_are_looked_at():
    """Kills: a hook that runs marked tests anywhere: no machine has both."""
    pytest.fail("ran without a GPU or without a TPU")
