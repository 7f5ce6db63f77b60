"""The style of pictures. Kills: half a picture after a failure, a name read as a formula."""

import os
import subprocess
import sys

import pytest

from jaxzoo.utils.figure import add_caption, add_legend, panels, save, series_style
from jaxzoo.utils.whole_files import unfinished


@pytest.fixture
def drawn():
    figure, axes = panels(1, 2, size=(6, 3), title="two")
    for panel, names in zip(axes.flat, (("a", "b"), ("b", "c")), strict=True):
        for name in names:
            panel.plot([1, 2, 4], [3, 30, 300], **series_style(ord(name) - ord("a")), label=name)
    return figure, axes


@pytest.mark.full
def test_one_legend_below_the_panels_holds_each_label_once(drawn):
    """Kills: a label for each panel that draws it, and a legend over a line or an axis label."""
    figure, axes = drawn
    axes[0, 0].set_xlabel("tokens")
    add_legend(figure)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    assert legend.get_window_extent().y1 <= axes[0, 0].xaxis.label.get_window_extent().y0
    assert legend.get_window_extent().y1 <= min(panel.get_tightbbox().y0 for panel in axes.flat)


def test_a_picture_appears_whole_or_not_at_all(drawn, tmp_path, monkeypatch):
    """Kills: half a picture, or none where there was one, after a full disk or a killed process; a temporary name
    that a run's directory does not know as its own."""
    figure, _ = drawn
    path = tmp_path / "curve.png"
    save(figure, path)
    before = path.read_bytes()
    assert before.startswith(b"\x89PNG")
    targets = []

    def full_disk(target, **_):
        targets.append(target)
        target.write_bytes(b"half")
        raise OSError("No space left")

    monkeypatch.setattr(figure, "savefig", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(figure, path)
    assert targets == [unfinished(path, owned=True)]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_names_are_no_formulas(tmp_path):
    """Kills: a run name with two dollar signs that matplotlib parses as a formula, in titles, labels and legends."""
    figure, ((axes,),) = panels(1, 1, size=(4, 3), title="runs/lr$1_$2")
    axes.plot([1, 2], label="lr$^$")
    axes.set_xlabel("$\\frac$")
    add_legend(figure)
    add_caption(figure, "a $_$ b")
    save(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "backend",
    ["module://no_such_package.backend", *(pytest.param(x, marks=pytest.mark.full) for x in ("nonsense", "TkAgg"))],
)
def test_a_backend_that_is_not_installed(backend):
    """Kills: a picture, or a sweep's report, that fails where MPLBACKEND of a notebook names an absent package."""
    code = "from jaxzoo.sweep.report_files import _pictures; _pictures(None, [], None)"
    code += "; from jaxzoo.utils.figure import panels, render; figure, _ = panels(1, 1, size=(4, 3), title='x')"
    code += "; print(len(render(figure, 'png')))"
    environment = os.environ | {"MPLBACKEND": backend}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1000
