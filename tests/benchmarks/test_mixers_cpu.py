"""`python -m benchmarks.mixers_cpu`. Kills: times of another machine, a mixer that is left out."""

import json
import math

import pytest

from benchmarks.generation.measure import environment
from benchmarks.mixers_cpu import exponent, grows_too_fast, main, table
from benchmarks.subjects import family, growth, subjects
from jaxzoo.mixers import MIXERS, BaseConvConfig

pytestmark = pytest.mark.full


def test_every_registered_mixer_is_a_subject():
    """Kills: a list of names next to the registry; a default that cannot be built without arguments."""
    assert set(MIXERS) <= set(subjects())
    assert {family(config) for config in subjects().values()} <= {"attention", "linear", "conv", "ssm"}


def rows(growth, *times):
    lengths = (256, 1024, 4096, 8192)
    facts = {"compile_cpu_s": 9.9, "temporary_bytes": 2**20, "parameters": 1}
    done = [{"length": t, "cpu_ms": ms, **facts} for t, ms in zip(lengths, times, strict=False)]
    return {"family": "conv", "flops_growth": growth, "rows": done}


def test_the_mark_is_at_t_log_t_of_what_promises_less_than_t_squared():
    """Kills: a mark that never comes, or on attention; a limit of another base or other lengths."""
    cases = [("1", 8.0, False), ("log t", 10.4, False), ("1", 11.6, True), ("sqrt t", 64.0, True), ("t", 64.0, False)]
    for term, last, marked in cases:
        subject = rows(term, 0.3, 1.0, 4.0, last)
        assert grows_too_fast(subject) == marked
        assert (" !" in table({"subjects": {"x": subject}})) == marked
    assert exponent(rows("1", 1.0, 4.0, 16.0, 32.0)) == pytest.approx(1)
    assert exponent(rows("1", 1.0, 4.0, 16.0)) is None


@pytest.fixture
def _quick(monkeypatch):
    """Restricts the benchmark to one subject and restores the environment."""
    for name in ("JAX_PLATFORMS", "NPROC"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("benchmarks.subjects.subjects", lambda: {"base_conv": BaseConvConfig()})


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(("name", "value"), [("device", "another CPU"), ("versions", {"jax": "0.1", "python": "3.0"})])
def test_rows_of_elsewhere_are_not_taken_for_ours(name, value, tmp_path, capsys):
    """Kills: times of another machine or version of JAX that a report gives as those of this one."""
    out = tmp_path / "m.json"
    report = {"width": 64, "batch": 8, **environment(), name: value, "subjects": {"base_conv": rows("1", 1.0)}}
    out.write_text(json.dumps(report))
    assert main(["--lengths", "256", "--out", str(out)]) == 2
    assert f"has {name}={value}, not" in capsys.readouterr().err
    assert json.loads(out.read_text()) == report


def test_growth_names_the_term_that_grows():
    """Kills: a constant part that hides the growth, logarithms taken for constants."""
    for cost, term in (
        (lambda t: 1e4, "1"),
        (lambda t: 1e6 + min(t, 64), "1"),
        (lambda t: 1e3 + 80 * math.log2(2 * t), "log t"),
        (lambda t: 1e3 + 16 * math.sqrt(t), "sqrt t"),
        (lambda t: 1e5 + 4 * t, "t"),
        (lambda t: 7 * t + t**2 / 9, "t^2"),
    ):
        assert growth(cost) == term
