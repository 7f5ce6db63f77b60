"""`python -m benchmarks.kernel_plot`. Kills: curves that are not the rows."""

import numpy as np
import pytest

from benchmarks import kernel_plot
from pallas_kernels import pages
from tests.pallas_kernels.test_benchmark_report import small_result


@pytest.fixture
def result():
    return small_result()


@pytest.mark.full
def test_curves_are_the_rows_and_the_floor(result):
    rows = [r for r in result["rows"] if r["status"] == "ok" and "cpu_length" in r["groups"]]
    figure = kernel_plot._curves([r for r in rows if r["implementation"] != "auto"], "t", "title", memory=True)
    time, memory = figure.axes
    lines = {str(line.get_label()): line.get_xydata() for line in time.get_lines()}
    assert set(lines) == {"xla", "naive", "floor"}
    np.testing.assert_allclose(lines["xla"], [[t, t * 1e-3] for t in (256, 1024, 4096)])
    np.testing.assert_allclose(memory.get_lines()[0].get_xydata(), [[t, t / 2**10] for t in (256, 1024, 4096)])


@pytest.mark.full
def test_the_command_draws_files(result, tmp_path, capsys):
    """Kills: a command that draws nothing, and a file that is no result met by a traceback."""
    pages.write_json(tmp_path / "taylor.json", result)
    kernel_plot.main([str(tmp_path / "taylor.json")])
    names = ["taylor-cpu_length.png", "taylor-headline.png"]
    assert sorted(path.name for path in tmp_path.glob("*.png")) == names
    assert [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()] == names
    with pytest.raises(SystemExit, match="No such file"):
        kernel_plot.main([str(tmp_path / "missing.json")])
