"""`python -m benchmarks.delta_rules`. Kills: an array passed under another name, XLA timed as a kernel."""

import json

import jax
import numpy as np
import pytest

from benchmarks import delta_rules
from pallas_kernels.benchmark import run
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.workload import Workload
from tests.pallas_kernels.shared import PLATFORMS

SMALL = ["--b", "1", "--t", "70", "--h", "2", "--width", "8"]


@pytest.mark.slow
def test_the_command_checks_and_times(tmp_path, capsys):
    """Kills: a rule with the wrong arrays, a truth of another rule, and rows that are lost."""
    delta_rules.main([*SMALL, "--seconds", "0.01", "--out", str(tmp_path), "--rules", "decay_per_token"])
    (file,) = tmp_path.glob("delta_rule-*.json")
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 2 * 2
    assert {row["status"] for row in rows} == {"ok"}
    assert max(row["error"] for row in rows) < 4e-3
    assert "decay_per_token forward + backward, xla: " in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.skipif("cuda" not in PLATFORMS, reason="Mosaic GPU needs a newer JAX")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[pytest.mark.slow] * ((name, kind) != ("general", "forward")))
        for name in delta_rules.RULES
        for kind in delta_rules.KINDS
    ],
)
def test_kernels_are_in_their_own_programs(name, kind, monkeypatch):
    """Kills: a setting that is gone when a program is lowered: XLA was timed as kernels, and once was."""

    def lower(function, inputs, calls):
        with lowering_for("cuda"):
            return jax.jit(function).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()

    monkeypatch.setattr(run.programs, "lower", lower)
    workload = delta_rules.workload(name, kind, delta_rules.BenchmarkConfig(b=1, t=64, h=2))
    settings = run.Settings(seconds=0.1, repeats=1, seeds=2)
    kernels, xla = run._compile([(workload, c) for c in delta_rules.candidates()], settings)
    assert "mosaic_gpu" in kernels
    assert "triangular_solve" not in kernels
    assert "mosaic_gpu" not in xla


@pytest.mark.parametrize("name", delta_rules.RULES)
def test_peers_get_every_array_by_its_name(name):
    """Kills: a log decay in the place of the rates, and removals that are swapped."""

    def rwkv7(r, w, k, v, a, b, scale):
        return (r, k, v, a, b, w, scale), None

    def delta(q, k, v, beta, scale):
        return (q, k, v, beta, scale), None

    def gated(q, k, v, g, beta, scale):
        return (q, k, v, beta, g, scale), None

    peer = {"general": rwkv7, "no_decay": delta}.get(name, gated)
    config = delta_rules.BenchmarkConfig(b=1, t=4, h=2, width=3)
    workload: Workload = delta_rules.workload(name, "forward", config)
    inputs = workload.inputs(0)
    *found, scale = delta_rules._fla(name)(workload, peer)(*inputs)
    assert scale == 1.0
    for given, expected in zip(found, inputs, strict=True):
        np.testing.assert_array_equal(given, expected)
