"""Shipped certificates and measured tables. Kills: an edit that turns kernels off."""

import json

from docs import measured_kernels
from pallas_kernels import certificates
from pallas_kernels.kernel_sources import kernel_hash


def test_shipped_certificates_count():
    """Kills: an edit that silently turns kernels off where they were verified: run verify --compare, or on a device."""
    files = list(certificates.FOLDER.glob("*.json"))
    assert measured_kernels.CERTIFICATE.resolve() in [file.resolve() for file in files]
    for file in files:
        report = json.loads(file.read_text())
        assert report["kernels"] == {op: kernel_hash(op) for op in report["kernels"]}, file.name
        assert {case["case"].split()[0] for case in report["cases"]} == set(report["kernels"]), file.name
        assert all(case["programs"] for case in report["cases"]), file.name


def test_table_has_what_was_measured(tmp_path, monkeypatch):
    """Kills: a time of another row, and a ratio upside down."""
    monkeypatch.setattr(measured_kernels, "PICTURE", tmp_path / "picture.png")
    text = measured_kernels.table()
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    for line in (
        "| taylor_attention | forward | b4_h16_t8192 | **114** | 50% | 59% | cuDNN, full softmax 1,350 (11.9x), ",
        "| sliding_window | forward + backward | b4_h16_t8192_w64 | **294** | 84% | 75% | cuDNN, window 798 (2.7x), ",
    ):
        assert line in text, line
