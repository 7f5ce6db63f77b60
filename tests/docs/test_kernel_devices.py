"""The README's table of kernels by device."""

import json
from pathlib import Path

from docs import kernel_devices
from pallas_kernels import certificates
from pallas_kernels.compile_check import table as counts


def test_readme_has_the_table_of_today():
    """Kills kernels that the README calls verified after their certificates fell, and the reverse."""
    text = Path("pallas_kernels/README.md").read_text()
    assert f"<!-- DEVICES -->\n{kernel_devices.table()}\n<!-- /DEVICES -->" in text, "python -m docs.update_readme"


def test_only_a_device_verifies(tmp_path, monkeypatch):
    """Kills compiled kernels that are called verified, one architecture that speaks for others, and a forgotten one."""
    found = {"mosaic": {("9.0", "wkv4")}, "triton": {("8.0", "wkv4"), ("8.9", "wkv4")}}
    monkeypatch.setattr(certificates, "verified", lambda language: frozenset(found[language]))
    entries = {"wkv4 forward a v5e": ["a kernel"], "wkv4 forward a v6e": [], "taylor_attention forward a h100": ["one"]}
    monkeypatch.setattr(counts, "read", lambda: {name: {"kernels": kernels} for name, kernels in entries.items()})
    monkeypatch.setattr(kernel_devices, "TRITON", tmp_path / "triton.json")
    kernel_devices.TRITON.write_text(
        json.dumps({"wkv4": {"8.6": {"a": 1}, "12.0": {"a": 1}, "10.0": {}, "9.0": {"a": 1}}})
    )
    _, _, *lines = kernel_devices.table().splitlines()
    rows = {cells[0]: cells[1:] for cells in (line[2:-2].split(" | ") for line in lines)}
    assert rows["wkv4"][:4] == ["XLA", "verified (8.0), compiled (8.6)", "verified", "verified"]
    assert rows["wkv4"][4:] == ["XLA (10.0, 10.3), compiled (12.0)", "compiled", "XLA", "XLA"]
    assert rows["taylor_attention"] == ["XLA"] * 3 + ["compiled"] + ["XLA"] * 4
    assert rows["sliding_window"] == ["XLA", "cuDNN", "cuDNN", "XLA", "cuDNN", "XLA", "XLA", "XLA"]
