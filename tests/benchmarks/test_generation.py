"""The benchmark of generation: equal models, a complete report, nothing overwritten."""

import json

import jax
import pytest

from benchmarks.generation import measure
from benchmarks.generation.__main__ import main
from benchmarks.generation.models import SIZES
from jaxzoo.models.accounting import count_parameters, state_bytes

pytestmark = pytest.mark.full


@pytest.mark.full
@pytest.mark.parametrize("name", SIZES)
def test_models_of_a_size_have_equal_parameters(name):
    """Kills: a comparison of a large model with a small one."""
    counts = [count_parameters(config) for config in SIZES[name].models().values()]
    assert len(counts) == 3
    assert max(counts) / min(counts) < (1.15 if name == "tiny" else 1.03)


@pytest.mark.slow
def test_a_run_reports_every_measurement_and_its_circumstances(tmp_path, capsys):
    """Kills: a curve without points, a state that is counted by a formula, a number without device or version."""
    command = ["--size", "tiny", "--repeats", "2", "--lengths", "16", "--batches", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    report = json.loads((tmp_path / "generation-tiny-cpu.json").read_text())
    assert (tmp_path / "generation-tiny-cpu.png").read_bytes().startswith(b"\x89PNG")
    size = SIZES["tiny"]
    models = size.models()
    assert [model["model"] for model in report["models"]] == list(models)
    for kind, name, values in (
        ("prefill", "length", (16,)),
        ("decode_by_context", "context", (16,)),
        ("decode_by_batch", "batch", (2,)),
    ):
        assert [(row["model"], row[name]) for row in report[kind]] == [(m, value) for m in models for value in values]
        assert all(len(row["all_seconds"]) == 2 and row["tokens_per_second"] > 0 for row in report[kind])
    for row in report["decode_by_context"]:
        assert row["state_bytes"] == state_bytes(models[row["model"]], row["context"] + size.context_steps)
    assert report["platform"] == "cpu"
    assert report["versions"]["jax"] == jax.__version__
    assert report["date"]
    out = capsys.readouterr().out
    assert out.count("tokens/s") == 9

    assert main(command) == 2
    assert "generation-tiny-cpu.json exists; replace it with --overwrite" in capsys.readouterr().err


@pytest.mark.full
def test_times_leave_out_compilation_and_wait_for_the_result():
    """Kills: a time of the dispatch alone, the first call among the times, a start that is timed."""
    calls = []

    def call(rows):
        calls.append(rows)
        return rows

    times = measure._timed(call, lambda: len(calls), repeats=3)
    assert calls == [0, 1, 2, 3]
    assert len(times.wall) == len(times.cpu) == 3
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: y @ x, x))
    x = jax.numpy.eye(400)
    times = measure._timed(slow, lambda: x, repeats=1)
    assert times.wall[0] > 5e-3, "100 products of 400 x 400 matrices are 13 GFLOP"


@pytest.mark.slow
def test_a_curve_ends_where_memory_does(monkeypatch, capsys):
    """Kills: one model that is too large for the device and takes the results of the others with it."""

    def out_of_memory(subject, length, steps, repeats):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        yield

    monkeypatch.setattr(measure, "_after_a_prompt", out_of_memory)
    lines = []
    size = SIZES["tiny"]._replace(batches=(2,))
    report = measure.measure(size, 1, lines.append)
    assert [row["context"] for row in report["decode_by_context"]] == [8] * 3
    assert all(row["out_of_memory"] for row in report["decode_by_context"])
    assert len(report["decode_by_batch"]) == 3
    assert sum("out of memory" in line for line in lines) == 3

    def broken(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(measure, "_without_a_prompt", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        measure.measure(size, 1, lines.append)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--size 7b", "invalid choice '7b'"),
        ("--repeats 0", "--repeats 0 must be positive"),
        ("--models based", "--models ('based',) must be among Based, convolutions, Transformer++"),
        ("--lengths 16 0", "--lengths (16, 0) must be positive"),
        ("--length 16", "unknown option --length; did you mean --lengths?"),
    ],
)
def test_one_line_for_a_mistake(flags, message, capsys):
    """Kills: a traceback, or a mistake that shows after an hour."""
    assert main(flags.split()) == 2
    assert message in capsys.readouterr().err
