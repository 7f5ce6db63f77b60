"""Kernels are chosen wherever they serve a call: `test_certificates.py` tests the default."""

import pytest

from pallas_kernels import certificates


@pytest.fixture(autouse=True)
def every_kernel(monkeypatch):
    monkeypatch.setenv(certificates.SETTING, "all")
