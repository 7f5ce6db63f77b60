"""Reports of sweeps. Kills: a wrong best run, a claim without runs that counts as false."""

import dataclasses
import json
from pathlib import Path

import pytest

import jaxzoo
from jaxzoo.sweep import grid
from jaxzoo.sweep.experiment import coordinates
from jaxzoo.sweep.table import number
from tests.sweep.small_sweep import ABOUT, EXPERIMENT, POINTS, report, row, rows

FILES = {"figure.png", "figure.svg", "table.md", "claims.json"}


def names(path):
    return {file.name for file in path.iterdir()}


def lines(path):
    """Rows of the first table, as lists of cells."""
    table = (path / "table.md").read_text().split("\n\n")[2]
    return [
        [cell.strip() for cell in line.split(" | ")] for line in table.replace("|\n|", "\n").strip("| ").split("\n")
    ]


def test_the_table_has_the_best_run_of_each_group(tmp_path):
    """Kills: the first, last or worst rate, a group that is lost, the order of arrival, the state of another run."""
    report(tmp_path / "new")
    assert names(tmp_path / "new") == FILES
    head, _, *body = lines(tmp_path / "new")
    assert head == ["model", "d_model", "accuracy", "best learning_rate", "steps", "state bytes", "parameters"]
    assert body == [
        ["attention", "16", "0.900", "0.01", "100", "1,024", "16,000"],
        ["attention", "32", "1.000", "0.001", "100", "2,048", "32,000"],
        ["hyena", "16", "0.125", "0.001", "100", "-", "16,000"],
        ["hyena", "32", "0.375", "0.01", "100", "-", "32,000"],
    ]


def test_a_seed_that_diverged_makes_no_score_better(tmp_path):
    """Kills: the bits per byte of a seed that diverged counted as 0, which is the best."""
    points = grid(model=("attention",), d_model=(16,), learning_rate=(0.01,), seed=(0, 1, 2))
    made = [row(point, 0.5) | {"metrics": {"valid/bits_per_byte": 2.0, "valid/accuracy": 0.6}} for point in points]
    made[2] |= {"status": "diverged", "metrics": {}}
    report(tmp_path, about=ABOUT._replace(axes=(*ABOUT.axes, "seed"), n_runs=3), made=made)
    head, _, body = lines(tmp_path)
    assert head[2:4] == ["bits_per_byte", "accuracy"]
    assert body[2:4] == ["1 of 3 seeds diverged", "0.400 (0.000 to 0.600), unstable"]


def test_what_is_not_tuned_says_so(tmp_path):
    """Kills: a verdict of two learning rates that reads like one of the paper's."""
    report(tmp_path, about=ABOUT._replace(untuned="2 learning rates, 1 seed"))
    text = (tmp_path / "table.md").read_text()
    assert "\n\n**Not tuned**: 2 learning rates, 1 seed; a verdict needs four" in text
    assert "| ✗ not held, not tuned |" in text
    assert "(not tuned: 2 learning rates, 1 seed)" in " ".join((tmp_path / "figure.svg").read_text().split())


def test_claims_have_verdict_numbers_and_remark(tmp_path):
    """Kills: a claim whose runs are missing taken for one that does not hold, a remark at another claim."""
    told = report(tmp_path)
    held, broken, untested = json.loads((tmp_path / "claims.json").read_text())
    assert held == {
        "name": "attention-hyena",
        "quote": "We see that attention beats hyena.",
        "text": "attention beats hyena.",
        "source": "Paper, Sec. 1",
        "rule": "No tolerance.",
        "verdict": "held",
        "numbers": "0.9 against 0.125; 1 against 0.375",
        "control": "seen 0.1 above guessing: attention 1.00",
        "remark": None,
    }
    assert (broken["verdict"], broken["remark"]) == ("not held", "It is too small.")
    assert (untested["verdict"], untested["numbers"]) == ("not tested", "no finished run at model rwkv, d_model 16")
    text = (tmp_path / "table.md").read_text()
    quote = "We see that hyena beats attention."
    assert f"| “{quote}” | hyena beats attention. | Paper, Sec. 1 | ✗ not held | 0.125 against 0.9;" in text
    assert "| It is too small. |" in text
    assert "- RWKV: is not there." in text
    assert "Width 16 and 32." in text
    assert told == ["claims: 1 held, 1 not held, 1 not tested"]


@pytest.mark.full
def test_provenance_names_each_maker_once_and_counts_each_run_once(tmp_path):
    """Kills: CPU-hours counted a second time where points share a run, one machine or date for all, no commit."""
    made = rows()
    made[0] |= {"machine": "a | b", "date": "2026-03-09", "commit": None}
    shared = {"model": "attention", "d_model": 64, "learning_rate": 0.001}
    made.append({**row(shared, 1.0), "id": made[1]["id"]})
    report(tmp_path, made=made)
    assert (
        (tmp_path / "table.md")
        .read_text()
        .endswith(
            "Made on a \\| b and two cores; 2026-03-04 to 2026-03-09; jax 0.10.2; commit abc1234 and unknown; "
            "8 runs, 0.8 CPU-hours; by `jaxzoo sweep --experiment small.py --scale laptop`.\n"
        )
    )


def test_a_sweep_that_is_half_done_shows_what_is_there(tmp_path):
    """Kills: runs that count as missing and failed, or a failed run that was made since; no figure until the end."""
    half = [made for made in rows() if made["point"]["model"] == "attention"]
    failures = [
        {"id": "f", "point": POINTS[-1], "error": "out of | memory"},
        {"id": "g", "point": POINTS[0], "error": ""},
    ]
    told = report(tmp_path, made=half, failures=failures)
    progress = "4 of 8 points are finished, 4 are missing, 1 of them because their run failed"
    assert told == [progress, "claims: 3 not tested"]
    assert names(tmp_path) == FILES
    text = (tmp_path / "table.md").read_text()
    assert f"{progress}." in text
    assert "- model hyena, d_model 32, learning_rate 0.01: out of \\| memory" in text


@pytest.mark.parametrize("made", [[], [row(POINTS[0], None)]], ids=["nothing", "diverged"])
def test_a_sweep_without_a_finished_run_has_no_figure(tmp_path, made):
    """Kills: a traceback, an empty panel, a figure that stays from before."""
    (tmp_path / "figure.png").write_text("old")
    told = report(tmp_path, made=made)
    assert told[0] == "no figure yet: no run is finished"
    assert names(tmp_path) == {"table.md", "claims.json"}
    assert ("diverged" in (tmp_path / "table.md").read_text()) == bool(made)


def test_a_table_of_the_experiment_is_in_the_report(tmp_path):
    """Kills: a table that is lost, one that ends a report for want of runs."""
    own = lambda results: [["width", "score"], ["16", str(results.score(model="hyena", d_model=16))]]  # noqa: E731
    report(tmp_path / "all", experiment=dataclasses.replace(EXPERIMENT, table=own))
    assert (
        "\n\n| width | score |\n| --- | --- |\n| 16 | 0.125 |\n\n## Claims"
        in (tmp_path / "all" / "table.md").read_text()
    )
    report(tmp_path / "some", experiment=dataclasses.replace(EXPERIMENT, table=own), made=rows()[-2:])
    assert "| width |" not in (tmp_path / "some" / "table.md").read_text()


def test_numbers_are_short_and_exact_where_whole():
    """Kills: a large state in powers of ten, a rate of sixteen digits, a flag taken for a number."""
    assert [number(value) for value in (1234567, 10 ** (-8 / 3), None, True, "x")] == [
        "1,234,567",
        "0.002154",
        "-",
        "True",
        "x",
    ]
    assert coordinates({"length": 1024, "window": None, "rate": 1 / 3}) == "length 1024, rate 0.3333"


@pytest.mark.parametrize("made", [None, ()])
def test_an_alien_picture_does_not_stay(made, tmp_path):
    """Kills: scripts of somebody else's figure.svg, or names of runs, in what a report writes for a browser."""
    alien = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    (tmp_path / "figure.svg").write_text(alien)
    report(tmp_path, about=ABOUT._replace(scale_about=alien), **({} if made is None else {"made": made}))
    assert not [file for file in tmp_path.iterdir() if b"<script" in file.read_bytes() and file.suffix != ".md"]
    assert not [file for file in Path(jaxzoo.__file__).parent.rglob("*.py") if "<html" in file.read_text().lower()]
