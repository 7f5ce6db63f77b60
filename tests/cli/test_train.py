"""`jaxzoo train`. Kills: a resumed run that differs from an unbroken one, a diverged state that is saved."""

import dataclasses
import json
import math
import os
import shutil
import signal
import time
import traceback

import jax.numpy as jnp
import pytest

from jaxzoo.cli.config_file import load_config
from jaxzoo.config.config_io import from_json
from jaxzoo.data.statistics.ngram import ngram_baselines
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.parallel.agreement import StopSignals
from jaxzoo.train import loss
from jaxzoo.train.checkpoint import Checkpoints, read_seal
from jaxzoo.train.config import RunConfig
from jaxzoo.train.session import Session


@pytest.fixture
def at_step(monkeypatch):
    """`at_step(n, action)`: calls `action(state, metrics) -> (state, metrics)` after the n-th update."""

    def at_step(n, action):
        update, count = Session.update, [0]

        def counted(self, state, batch):
            count[0] += 1
            result = update(self, state, batch)
            return action(*result) if count[0] == n else result

        monkeypatch.setattr(Session, "update", counted)

    return at_step


def signalled(number):
    def action(state, metrics):
        os.kill(os.getpid(), number)
        return state, metrics

    return action


@pytest.fixture
def modules(monkeypatch) -> set[str]:
    """Modules on the call stack of the mixers and of the loss."""
    found: set[str] = set()

    def watch(owner, name):
        function = getattr(owner, name)

        def watched(*args, **kwargs):
            names = {frame.f_globals["__name__"] for frame, _ in traceback.walk_stack(None)}
            if "jaxzoo.evals.validation" not in names:
                found.update(each for each in {*names, function.__module__} if each.startswith("jaxzoo."))
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(loss, "cross_entropy")
    watch(BaseConv, "__call__")
    return found


IN_EPOCHS = ("--train.batch-size", "16", "--train.steps", "12", "--train.eval-every", "5")
"""Flags for 4 batches an epoch, or 8; runs that share them share what is compiled."""


@pytest.mark.parametrize("data", ["mqar", pytest.param("mixture", marks=pytest.mark.slow)])
def test_mqar_run_leaves_what_is_promised_with_pictures(data, request, modules, run, rows, tmp_path, capsys):
    """Kills: rows or files that are missing or misnamed, a config.json that does not give it back, a last
    step without validation or checkpoint; more modules between command line and loss than a reader can follow."""
    file = request.getfixturevalue(f"{data}_file")
    assert run(file, "r", *IN_EPOCHS) == 0
    assert {"jaxzoo.cli.train", "jaxzoo.train.loss", "jaxzoo.models.block"} < modules
    assert len(modules) <= 10  # with jaxzoo/train/__main__.py and cli/commands.py: 12
    names = {p.name for p in (tmp_path / "r").iterdir() if not p.name.startswith("events.out.tfevents.")}
    files = {"config.json", "metrics.jsonl", "speed.jsonl", "learning_curve.png", "newest_checkpoint.json"}
    assert names == {*files, "checkpoints", ".lock"}
    loaded = from_json(json.loads((tmp_path / "r" / "config.json").read_text()), RunConfig)
    config = load_config(file)
    train_config = dataclasses.replace(config.train, batch_size=16, steps=12, eval_every=5)
    assert loaded == dataclasses.replace(config, train=train_config)
    train = [row for row in rows("r") if "train/loss" in row]
    valid = [row for row in rows("r") if "valid/loss" in row]
    assert [row["step"] for row in train] == list(range(1, 13))
    assert [row["step"] for row in valid] == [5, 10, 12]
    assert train[0].keys() == {
        "step",
        *(f"train/{n}" for n in ("loss", "accuracy", "grad_norm", "learning_rate")),
    }
    slices = ("length=12", "pairs=3") if data == "mixture" else ()
    assert valid[0].keys() == {
        "step",
        "valid/loss",
        "valid/accuracy",
        *(f"valid/accuracy/{s}" for s in ("length=16", "pairs=2", *slices)),
    }
    assert train[0]["train/loss"] == pytest.approx(math.log(257), rel=0.01)
    assert Checkpoints(tmp_path / "r" / "checkpoints").newest == 12
    speeds = [json.loads(line) for line in (tmp_path / "r" / "speed.jsonl").read_text().splitlines()]
    assert [row["step"] for row in speeds] == list(range(1, 13))
    assert all(row["examples_per_second"] > 0 for row in speeds)
    out = capsys.readouterr().out
    for text in ("parameters", "compiled in", "step 12/12", "examples/s", "validation at step 12", *slices):
        assert text in out


@pytest.mark.slow
def test_text_run_prints_and_stores_its_baselines(text_file, run, rows, tmp_path, capsys):
    """Kills: baselines of other tokens than those that the model is scored on, bits per token for byte; a run that is
    resumed on other text, where the cursor means other batches."""
    assert run(text_file, "r") == 0
    data = Session(load_config(text_file)).dataset
    batch = data.valid()[0].batch(0)
    n_bytes = round(data.bytes_per_token * batch.targets.size)
    scores = ngram_baselines(data._train, batch.tokens, batch.targets, vocab_size=257, n_bytes=n_bytes)
    first, out = rows("r")[0], capsys.readouterr().out
    assert first["step"] == 0
    for name in ("unigram", "bigram"):
        assert first[f"baseline/{name}/bits_per_byte"] == pytest.approx(scores[name].bits_per_byte)
        assert f"{name} {scores[name].bits_per_byte:.3f}" in out
    last = rows("r")[-1]
    assert last["valid/perplexity"] == pytest.approx(math.exp(last["valid/loss"]))
    expected = last["valid/loss"] / math.log(2) / data.bytes_per_token
    assert last["valid/bits_per_byte"] == pytest.approx(expected)
    assert json.loads((tmp_path / "r" / "manifest.json").read_text()) == json.loads(json.dumps(data.manifest()))
    (tmp_path / "corpus" / "1.txt").write_text("quite another text " * 9)
    assert run(text_file, "r", "--resume") == 2
    assert "fingerprint" in capsys.readouterr().err


def killed_after(run_directory, saved, copy):
    """Returns an action that copies the run directory once a checkpoint is complete, as a kill would leave it."""

    def action(state, metrics):
        deadline = time.monotonic() + 60
        while not (run_directory / "checkpoints" / str(saved)).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        shutil.copytree(run_directory, copy)
        return state, metrics

    return action


@pytest.mark.parametrize("data", ["mqar", pytest.param("mixture", marks=pytest.mark.slow)])
def test_killed_then_resumed_equals_unbroken(data, request, run, rows, tmp_path, at_step, capsys):
    """Kills: a cursor off by one batch, the order of another epoch, a dropout key or optimizer state that is reset,
    rows that are lost or repeated after the newest checkpoint. Compares every row of metrics and every bit of the last
    checkpoint."""
    file = request.getfixturevalue(f"{data}_file")
    at_step(11, killed_after(tmp_path / "whole", 9, tmp_path / "killed"))
    assert run(file, "whole", *IN_EPOCHS) == 0
    assert "9" in (p.name for p in (tmp_path / "killed" / "checkpoints").iterdir())
    assert rows("killed")[-1]["step"] == 10
    capsys.readouterr()
    assert run(file, "killed", *IN_EPOCHS, "--resume") == 0
    assert "resumed at step 9" in capsys.readouterr().out
    assert rows("killed") == rows("whole")
    digests = [read_seal(tmp_path / name / "checkpoints" / "12").digests for name in ("killed", "whole")]
    assert digests[0] == digests[1]
    assert {name.split("/")[0] for name in digests[0]} == {"params", "opt_state", "step", "key"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "step"),
    [
        ("mqar_file", signal.SIGTERM, 4),
        pytest.param("text_file", signal.SIGINT, 5, marks=pytest.mark.slow),
        pytest.param("own_data_file", signal.SIGTERM, 5, marks=pytest.mark.slow),
    ],
)
def test_signal_then_resume_equals_unbroken(name, number, step, request, run, rows, at_step, capsys):
    """Kills: a cursor off by one batch, a dropout key or optimizer state that is reset, rows that are lost or repeated
    where a validation was due when the signal came."""
    file = request.getfixturevalue(name)
    assert run(file, "whole") == 0
    at_step(step, signalled(number))
    assert run(file, "broken") == 0
    assert f"stopped at step {step}, saved; continue with the same command and --resume" in capsys.readouterr().out
    assert rows("broken")[-1]["step"] == step
    assert run(file, "broken", "--resume", "--train.keep-checkpoints", "1") == 0
    assert f"resumed at step {step}" in capsys.readouterr().out
    assert rows("broken") == rows("whole")


def test_interruption_before_training(mqar_file, run, monkeypatch, tmp_path, capsys):
    """Kills: a traceback after Ctrl-C while the step compiles."""

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "compile", interrupted)
    assert run(mqar_file, "r") == 130
    assert capsys.readouterr().err == "interrupted before training began; nothing was written\n"
    assert not (tmp_path / "r").exists()


def test_second_signal_kills():
    """Kills: a run that cannot be stopped while it saves, handlers that outlive the run."""
    before = signal.getsignal(signal.SIGINT)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
    try:
        for number in numbers:
            with StopSignals() as stop:
                assert not stop.requested
                os.kill(os.getpid(), number)
                assert stop.requested
                assert [signal.getsignal(each) for each in numbers] == [signal.SIG_DFL] * 3
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert signal.getsignal(signal.SIGINT) is before


def test_nohup_is_respected(monkeypatch):
    """Kills: a run under nohup that ends with its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_not_a_number_stops_before_a_checkpoint(mqar_file, run, rows, tmp_path, at_step, capsys):
    """Kills: a checkpoint of a diverged state at step 6."""
    at_step(6, lambda state, metrics: (state, {**metrics, "loss": jnp.float32(jnp.nan)}))
    assert run(mqar_file, "r") == 1
    message = capsys.readouterr().err
    assert message.startswith(
        "error: loss is nan at step 6; the newest checkpoint that was saved is that of step 3 in "
    )
    assert message.count("\n") == 1
    assert Checkpoints(tmp_path / "r" / "checkpoints").newest == 3
    assert [row["step"] for row in rows("r") if "train/loss" in row] == [1, 2, 3, 4, 5]


def test_parameters_that_are_not_finite_are_never_saved(mqar_file, run, tmp_path, at_step, capsys):
    """Kills: a diverged model that is saved and resumed as if it were good."""

    def break_parameters(state, metrics):
        embedding = state.params["embedding"].at[3, 3].set(jnp.inf)
        return state._replace(params={**state.params, "embedding": embedding}), metrics

    at_step(6, break_parameters)
    assert run(mqar_file, "s", "--train.eval-every", "0") == 1
    message = capsys.readouterr().err
    place = tmp_path / "s" / "checkpoints"
    assert message == (
        f"error: params/embedding is not finite at step 6; the newest checkpoint that was saved is that of step 3 in "
        f"{place}; begin a run with a lower --optimizer.learning-rate, from there with --init-from {tmp_path / 's'}:3\n"
    )
    assert Checkpoints(place).newest == 3


def test_a_full_disk_is_named_in_one_line(tmp_path, monkeypatch):
    """Kills: an error of the storage layer that hides the reason."""
    told = f"Error writing local file: {'x' * 300} [source locations='a.cc:1'] [No space left on device (28)]\nmore"

    def fail(*_, **__):
        raise ValueError(told)

    with Checkpoints(tmp_path / "c") as checkpoints:
        monkeypatch.setattr(checkpoints._saver, "save", fail)
        with pytest.raises(OSError, match=r"^checkpoint in .*/c: Error writing .*No space left on device \(28\)\]$"):
            checkpoints.save(1, None, cursor={}, config={})  # type: ignore[arg-type]


def refused(run, file, capsys, tmp_path, *flags):
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert run(file, "r", *flags) == 2
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_what_is_refused_writes_nothing(mqar_file, text_file, run, tmp_path, capsys):
    """Kills: a run directory made before the input was checked; messages of many lines."""
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.mkdir()
    binary.write_bytes(b"\xff\xfe\xfd")
    for file, flags, text in [
        (mqar_file, ("--model.d-modle", "4"), "did you mean --model.d-model?"),
        (
            mqar_file,
            ("--model.vocab-size", "39"),
            "LanguageModelConfig.vocab_size=39 must be at least the 40",
        ),
        (mqar_file, ("--train.batch-size", "12", "--mesh.fsdp", "2"), "must be divisible by 8"),
        (mqar_file, ("--mesh.data", "3"), "does not fit 8 devices"),
        (mqar_file, ("--resume",), "holds no run to resume"),
        (text_file, ("--data.path", str(tmp_path / "none")), "TextDataConfig.path="),
        (text_file, ("--data.path", str(empty)), "TextDataConfig.path="),
        (text_file, ("--data.path", str(binary)), "TextDataConfig.path="),
    ]:
        assert text in refused(run, file, capsys, tmp_path, *flags)


NONSENSE = [
    ("--model.d-model 1000000000", "LanguageModelConfig: d_model=1000000000, n_layers=2, vocab_size=257 and "),
    ("--model.d-model 100000", "160.3 GB of it for 20,0"),
    ("--model.n-layers 2000000000", "LanguageModelConfig.n_layers=2000000000 must be in [1, 65536]"),
    ("--model.n-layers 60000 --model.d-model 4096 --model.mlp-width 16384", "must fit into "),
    ("--model.d-model 2147483648", "LanguageModelConfig.d_model=2147483648 must be below 2^31"),
    ("--data.train.0.task.power inf", "MQARConfig.power=inf must be finite"),
    ("--data.train.0.task.power 300", "MQARConfig.power=300.0 must be "),
    ("--optimizer.learning-rate nan", "OptimizerConfig.learning_rate=nan must be finite"),
    ("--model.init-std=-1", "LanguageModelConfig.init_std=-1.0 must not be negative"),
    ("--train.seed 4294967296", "TrainConfig.seed=4294967296 must be in [0, 2^32)"),
]


def test_nonsense_is_refused_before_an_array_exists(mqar_file, run, tmp_path, capsys):
    """Kills: a compiler that aborts, a search over a million layers, and a run directory made before memory ends."""
    for flags, text in NONSENSE:
        assert text in refused(run, mqar_file, capsys, tmp_path, *flags.split(), "--mesh.data", "4", "--mesh.fsdp", "2")


@pytest.mark.full
def test_run_is_kept_resumed_as_it_was_or_replaced(mqar_file, text_file, run, rows, tmp_path, capsys):
    """Kills: an overwritten run, a resume with another model or other data, old rows kept by --overwrite."""
    assert run(mqar_file, "r", "--train.steps", "3") == 0
    capsys.readouterr()
    assert "continue it with --resume or replace it with --overwrite" in refused(run, mqar_file, capsys, tmp_path)
    flags = ("--resume", "--train.steps", "3")
    message = refused(run, mqar_file, capsys, tmp_path, *flags, "--model.pattern.0.n-taps", "4")
    assert "--resume: model.pattern.0.n_taps is 4 but the run in" in message
    assert "data.type is" in refused(run, text_file, capsys, tmp_path, *flags)
    fewer = refused(run, mqar_file, capsys, tmp_path, "--resume", "--train.steps", "2")
    assert "train.steps is 2 and must be at least the 3" in fewer
    rate = refused(run, mqar_file, capsys, tmp_path, *flags, "--optimizer.learning-rate", "1")
    assert "begin a new run from its parameters, with --init-from" in rate
    assert run(mqar_file, "r", "--overwrite", "--train.steps", "2") == 0
    assert [row["step"] for row in rows("r") if "train/loss" in row] == [1, 2]


@pytest.mark.full
def test_a_run_goes_on_for_longer(mqar_file, run, rows):
    """Kills: a finished run that cannot be continued; a schedule that ends where the shorter run ended; a config that
    still names fewer steps."""
    assert run(mqar_file, "longer", "--train.steps", "3") == 0
    assert run(mqar_file, "longer", "--resume", "--train.steps", "6") == 0
    assert run(mqar_file, "whole", "--train.steps", "6") == 0
    found, whole = (
        {row["step"]: row["train/learning_rate"] for row in rows(name) if "train/learning_rate" in row}
        for name in ("longer", "whole")
    )
    assert set(found) == set(whole)
    assert [found[step] for step in (4, 5, 6)] == [whole[step] for step in (4, 5, 6)]
    assert run(mqar_file, "longer", "--resume", "--train.steps", "6") == 0
