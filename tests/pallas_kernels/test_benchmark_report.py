"""A result survives its file, and prints without a device."""

import pytest

from pallas_kernels import pages
from pallas_kernels.benchmark import report


def row(t, implementation, status="ok", **fields):
    ms = t * (1e-3 if implementation == "xla" else 1e-2)
    found = {
        "op": "taylor_attention", "groups": ["cpu_length"], "name": f"t{t}", "kind": "forward",
        "sizes": {"b": 1, "t": t, "dtype": "float32"}, "implementation": implementation, "floor_ms": ms / 4,
        "bound": "compute", "flops": 1.0, "bytes": 1.0, "status": status, "reason": None,
    }  # fmt: skip
    if status == "ok":
        found |= {
            "ms": ms, "ms_p10": ms / 1.1, "ms_p90": ms * 1.2, "error": 1e-7, "errors": [1e-7], "share_of_floor": 0.25,
            "temp_bytes": t * 2**10, "peak_bytes": None,
        }  # fmt: skip
    return found | fields


def small_result():
    rows = [row(t, name) for t in (256, 1024, 4096) for name in ("xla", "naive", "auto")]
    rows += [row(4096, "mosaic_gpu", "refused", reason="runs on a gpu | not here")]
    rows += [row(64, "xla", groups=["headline"]), row(64, "naive", groups=["headline"], kind="step")]
    return {
        "op": "taylor", "device": "Some CPU, 2 cores", "platform": "cpu", "date": "2026-01-31", "commit": "abc",
        "versions": {"jax": "1.2.3"}, "settings": {}, "notes": ["peers: none"], "rows": rows,
        "ceilings": {"bandwidth": 2e10, "flops": 1.5e11, "matmul": "2048^3 float32"},
    }  # fmt: skip


@pytest.fixture
def result():
    return small_result()


@pytest.mark.full
def test_round_trip(result, tmp_path):
    path = tmp_path / "new" / "taylor.json"
    pages.write_json(path, result)
    assert report.load(path) == result
    assert [p.name for p in path.parent.iterdir()] == ["taylor.json"]


def test_markdown_has_a_table_for_each_group(result):
    text = report.markdown(result)
    assert text.splitlines()[0] == "`taylor` on Some CPU, 2 cores, 2026-01-31, commit abc; jax 1.2.3."
    assert "20 GB/s, 0.15 TFLOP/s (2048^3 float32)" in text
    assert "- peers: none" in text
    assert "| t1024 | forward | xla | 1.024 | 0.9309 to 1.229 | 25 % | 1 | 1.0e-07 |" in text
    assert "| t4096 | forward | mosaic_gpu | refused: runs on a gpu / not here |  |  |  |  |" in text
    tables = [[line.count("|") for line in part.splitlines()[2:]] for part in text.split("### ")[1:]]
    assert [len(table) for table in tables] == [2 + 10 + 1, 2 + 2]
    assert {count for table in tables for count in table if count} == {9}


@pytest.mark.full
@pytest.mark.parametrize("text", ["{", '{"op": "taylor"}'])
def test_other_files_are_not_results(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="not a result"):
        report.load(path)
