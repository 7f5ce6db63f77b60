"""Sweeps of the queue and their pictures. Kills: a piece that is done too early, results without a picture."""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import queue_pictures, sweep_piece
from experiments import text_tables
from jaxzoo.cli.sweep_options import open_sweep

ROOT = Path(__file__).parents[2]


def call(tmp_path, monkeypatch, made):
    """Calls the piece, whose training makes the first `made` points."""

    def train(command, place):
        sweep = open_sweep(Path(command.experiment), command.scale, place)
        sweep.directory.create(sweep.about(command.experiment, command.scale))
        rows = sweep.experiment.made_up_rows(sweep.scale)
        for (_, spec), row in list(zip(sweep.points, rows, strict=True))[:made]:
            known = {
                "cpu_seconds": 1.0,
                "date": "2026-01-01",
                "machine": "m",
                "versions": {},
                "commit": "c",
                "seconds": 1,
            }
            sweep.directory.write_result(spec.id, {name: row[name] for name in row if name != "point"} | known)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sweep_piece, "train", train)
    out = tmp_path / "result.json"
    words = f"--experiment experiments/text_tables.py --scale smoke --state {tmp_path} --minutes 1 --out {out}"
    return sweep_piece.main(words.split()), json.loads(out.read_text())


def test_a_sweep_is_done_when_all_runs_have_a_result(tmp_path, monkeypatch):
    """Kills: a status of success with runs left, finished runs that are not handed over."""
    n = len(text_tables.experiment.scales["smoke"]().points)
    status, found = call(tmp_path, monkeypatch, 1)
    assert (status, len(found["rows"])) == (sweep_piece.UNFINISHED, 1)
    status, found = call(tmp_path, monkeypatch, n)
    assert (status, [row["point"]["model"] for row in found["rows"]]) == (
        0,
        [point["model"] for point in text_tables.experiment.scales["smoke"]().points],
    )


def test_a_sweep_saves_when_its_time_is_over(tmp_path, monkeypatch):
    """Kills: a sweep that is killed before its workers have saved, or that nothing ends."""
    saved, stand_in = tmp_path / "saved", tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\ntrap 'echo \"$@\" > {saved}; exit' TERM\nsleep 60 & wait\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    command = argparse.Namespace(experiment="a.py", scale="device", workers="16", minutes=0.02)
    sweep_piece.train(command, tmp_path / "runs")
    words = f"-m jaxzoo sweep --experiment a.py --scale device --out {tmp_path / 'runs'} --workers 16"
    assert saved.read_text().split() == words.split()


def test_pictures_of_whatever_exists(tmp_path, monkeypatch):
    """Kills: a kind of result without a picture, a picture of a piece without a result."""
    results = ROOT / "benchmarks/results"
    (kernels,) = results.glob("taylor_attention-*.json")
    made = {
        "text-tables": call(tmp_path, monkeypatch, 3)[1],
        "based-figure-5": json.loads(kernels.read_text()),
        "based-figure-4: 20m": json.loads((results / "generation-20m-cpu.json").read_text()),
        "verify": "stopped",
    }
    queue = tmp_path / "on_device.json"
    queue.write_text(json.dumps({name: {"result": result} for name, result in made.items()}))
    assert queue_pictures.main([str(queue), "--out", str(tmp_path / "out")]) == 0
    found = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*.png")}
    assert {"text-tables/figure.png", "based-figure-4-20m.png"} < found
    assert any(name.startswith("based-figure-5") for name in found)
    assert not any(name.startswith("verify") for name in found)
