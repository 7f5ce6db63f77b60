"""All experiments at the scale `smoke`. Kills: an experiment that fails before its report."""

import functools
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxzoo.cli.sweep import report
from jaxzoo.cli.sweep_options import open_sweep
from jaxzoo.parallel.agreement import StopSignals
from jaxzoo.sweep.directory import About
from jaxzoo.sweep.queue import RunQueue
from jaxzoo.sweep.work import work
from jaxzoo.train.session import Session
from jaxzoo.utils.screen import Screen
from tests.data.shards import DNA, write_tokens

ROOT = Path(__file__).parents[2]
FILES = [
    str(file.relative_to(ROOT))
    for file in sorted((ROOT / "experiments").glob("*.py"))
    if "experiment = Experiment(" in file.read_text()
]


def test_all_files_are_found():
    """Kills: a search that finds none."""
    assert len(FILES) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_smoke(file, tmp_path, monkeypatch, capsys):
    """Kills: an experiment whose models do not train, whose claims cannot be judged, whose figure cannot be drawn."""
    monkeypatch.chdir(ROOT)
    bases = [[(np.random.default_rng(0).integers(0, 4, 400).tolist(), "")]]
    write_tokens(tmp_path / "tokens", {"train": bases, "valid": bases}, tokenizer=DNA)
    monkeypatch.setenv("DNA_TOKENS", str(tmp_path / "tokens"))
    monkeypatch.setattr("jaxzoo.sweep.work.Session", functools.partial(Session, devices=jax.devices()[:1]))
    out = tmp_path / "out"
    sweep = open_sweep(Path(file), "smoke", out)
    sweep.directory.create(About(file, "smoke"))
    with StopSignals() as stop, RunQueue(sweep.directory, "worker") as queue:
        work(sweep, queue, workers=1, vectorized=False, stop=stop)
    assert not sweep.failures()
    assert len(sweep.rows()) == len(sweep.points)

    report([str(out)], file, Screen(sys.stdout))
    assert (out / "figure.png").stat().st_size > 5_000
    verdicts = json.loads((out / "claims.json").read_text())
    assert {claim["name"] for claim in verdicts} == {claim.name for claim in sweep.experiment.claims}
    assert sweep.experiment.title in (out / "table.md").read_text()
    assert "no figure yet" not in capsys.readouterr().out
