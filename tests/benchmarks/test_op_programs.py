"""`python -m benchmarks.op_programs` and `decode_programs`. Kills: a further kernel launch or array."""

import json
import os

import pytest

from benchmarks import decode_programs, op_programs
from pallas_kernels import triton_packages
from tests.pallas_kernels.aot import needs
from tests.pallas_kernels.shared import full, slow

KEPT = op_programs.BenchmarkConfig().out


@pytest.mark.parametrize(
    ("options", "n_programs"),
    [
        full(["--ops", "taylor", "RG-LRU", "--passes", "forward"], 2),
        full(["--ops", "delta_rule, decay", "--kernels", "--passes", "forward_backward"], 2),
        full(["--ops", "residual_norm", "short_conv", "--kernels", "--passes", "forward_backward"], 3),
        slow(["--ops", "delta_rule", "wkv4", "selective", "--kernels", "--passes", "forward_backward"], 6),
    ],
)
def test_launches_and_bytes_are_those_of_the_table(tmp_path, options, n_programs):
    """Kills: a scan over chunks on a GPU, an array more between kernels, a table of another version."""
    needs("h100")
    out = tmp_path / "programs.json"
    op_programs.main([*options, "--out", str(out)])
    found, kept = json.loads(out.read_text()), json.loads(KEPT.read_text())
    assert len(found) == n_programs
    for name, row in found.items():
        assert row["launches"] <= 1.1 * kept[name]["launches"], name
        assert row["bytes"] == pytest.approx(kept[name]["bytes"], rel=0.05), name
        assert row["floor"] == kept[name]["floor"]


# Programs of absent devices cannot be loaded from a persistent cache that another test has enabled: compiled again.
@pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")
@pytest.mark.parametrize(
    "options",
    [
        full(["--size", "tiny", "--batches", "2"]),
        full(["--size", "tiny", "--batches", "2", "--kernels"]),
        slow(["--size", "360m", "--batches", "1"]),
    ],
)
def test_a_decode_step_launches_and_moves_what_the_table_says(tmp_path, options):
    """Kills: weights cast in every step, a loop or a conditional inside of a step, an array more between kernels, a
    state that is copied next to its kernel."""
    needs("h100")
    absent = triton_packages.missing() if "--kernels" in options else None
    if absent and os.environ.get("JAXZOO_REQUIRE_AOT") != "1":
        pytest.skip(f"needs the extra triton: {absent}")
    out = tmp_path / "programs.json"
    decode_programs.main(["--models", "Based", *options, "--out", str(out)])
    kept = json.loads(decode_programs.BenchmarkConfig().out.read_text())
    for name, row in json.loads(out.read_text()).items():
        assert row["launches"] <= 1.1 * kept[name]["launches"], name
        assert row["bytes"] == pytest.approx(kept[name]["bytes"], rel=0.05), name
        assert row["ideal"] == kept[name]["ideal"]
