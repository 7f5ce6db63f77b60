"""Helpers of tests that compile for absent devices."""

import os

import pytest

from pallas_kernels import certificates
from pallas_kernels.compile_check.run import ENVIRONMENT
from pallas_kernels.compile_check.targets import TARGETS, Target, missing


def needs(target: str) -> None:
    """Skips without the tools to compile for `target`, or fails where JAXZOO_REQUIRE_AOT=1 says that they must be."""
    reason = missing(TARGETS[target].platform)
    if reason is not None and os.environ.get("JAXZOO_REQUIRE_AOT") != "1":
        pytest.skip(f"needs the extra aot: {reason}")
    assert reason is None, reason


def absent_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Target that this process compiles for; skips the test if its plugin is missing."""
    needs(name)
    monkeypatch.setenv(certificates.SETTING, "all")
    for variable, value in ENVIRONMENT.items():
        if "TPU" in variable:
            monkeypatch.setenv(variable, value)
    return TARGETS[name]
