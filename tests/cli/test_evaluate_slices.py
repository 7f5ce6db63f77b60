"""`jaxzoo evaluate --slices recall`. Kills: losses that differ from the run's validation."""

import functools
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from jaxzoo.cli import evaluate_slices
from jaxzoo.cli.evaluate import main
from jaxzoo.cli.train import main as train
from jaxzoo.data.statistics.bigram_counts import count_bigrams
from jaxzoo.data.tokens.token_shards import TokenizedDocument, shard_name, write_manifest, write_shard
from jaxzoo.loading import load
from jaxzoo.loading.trained import read_run
from tests.data.recall_reference import bigram_counts
from tests.evals.slices_reference import CountedBigrams, check_sections, slow_sections
from tests.train.conftest import use_one_device


@pytest.fixture(scope="module")
def runs(tmp_path_factory, trained_run):
    """Run directories by name: the trained run, a baseline, and copies with other data configs."""
    directory = tmp_path_factory.mktemp("slices")
    flags = "--train.steps 1 --train.seed 5 --train.valid-batch-size 3 --train.eval-every 0 --model.init-std 0.5"
    where = ["--config", str(trained_run.parent / "text.py"), "--run-dir", str(directory / "baseline")]
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        patch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)
        assert train([*where, *flags.split()]) == 0
    fields = {"short": {"length": 8}, "lengths": {"valid_lengths": [8, 16]}}
    for name, data in fields.items():
        shutil.copytree(trained_run, directory / name)
        config = json.loads((directory / name / "config.json").read_text())
        config["data"].update(data)
        (directory / name / "config.json").write_text(json.dumps(config))
    return {"run": trained_run, **{name: directory / name for name in ("baseline", *fields)}}


@pytest.fixture
def measured(runs, tmp_path, monkeypatch):
    """Function that runs the command with bigram counts of the training text and returns the report."""

    def measured(*flags, bigrams=None):
        monkeypatch.setattr(evaluate_slices, "read_bigrams", lambda *_: bigrams)
        words = [str(runs.get(flag, flag)) for flag in flags]
        given = [] if bigrams is None else ["--bigrams", "counts"]
        assert main(["--slices", "recall", "--out", str(tmp_path / "out"), *given, *words]) == 0
        return json.loads((tmp_path / "out" / "recall.json").read_text())

    return measured


_forward = nnx.jit(lambda model, tokens: model(tokens))


def validation_rows(directory):
    """Tokens, targets, segments and float64 nats of each validation window of a run, one window at a time."""
    config = read_run(directory)[1]
    (valid_set,) = config.data.build(batch_size=1, valid_batch_size=1).valid()
    forward = functools.partial(_forward, load(directory).model)
    for i in range(valid_set.n_batches):
        batch = valid_set.batch(i)
        logits = np.asarray(forward(batch.tokens), np.float64)[0]
        tokens, targets = (np.asarray(x)[0].tolist() for x in (batch.tokens, batch.targets))
        nats = [math.log(np.exp(row).sum()) - row[target] for row, target in zip(logits, targets, strict=True)]
        yield tokens, targets, [0] * len(tokens), nats


@pytest.mark.full
def test_all_tokens_have_the_loss_of_the_run(runs, measured, capsys):
    """Kills: losses that differ from the validation's; slices without counts of the training text."""
    last = json.loads((runs["run"] / "metrics.jsonl").read_text().splitlines()[-1])
    found = measured("--run", "run")
    (model,) = found["models"]
    assert model["slices"]["all tokens"]["nats"] == pytest.approx(last["valid/loss"], rel=1e-6)
    assert model["slices"]["all tokens"]["tokens"] == 64
    assert (found["at_most"], found["baseline"], model["repeated_by_frequency"]) == (None, None, {})
    assert "without --bigrams, the counts in training are unknown" in capsys.readouterr().err


@pytest.mark.full
def test_counts_on_disk_of_the_run_s_own_tokens(runs, tmp_path, capsys):
    """Kills: counts of another tokenizer, of reversed pairs, or that are ignored."""
    config = read_run(runs["run"])[1]
    text = "".join(file.read_text() for file in sorted(Path(config.data.path).iterdir()))
    for name, fingerprint in (("bytes", "bytes-257"), ("other", "bpe-257")):
        tokens = tmp_path / f"{name}-tokens"
        tokens.mkdir()
        document = TokenizedDocument(np.frombuffer(text.encode(), np.uint8), len(text), "")
        write_shard(tokens, shard_name("train", 0), [document], vocab_size=257, end_of_text=256)
        tokenizer = {"name": name, "fingerprint": fingerprint, "vocab_size": 257, "end_of_text": 256}
        write_manifest(tokens, {"train": 1}, tokenizer=tokenizer, versions={})
        count_bigrams(tokens, tmp_path / name)
    words = ["--slices", "recall", "--run", str(runs["run"]), "--at-most", "30", "--bigrams"]
    assert main([*words, str(tmp_path / "bytes"), "--out", str(tmp_path / "out")]) == 0
    (model,) = json.loads((tmp_path / "out" / "recall.json").read_text())["models"]
    counted = CountedBigrams(bigram_counts([*text.encode(), 256]))
    check_sections(model, slow_sections(list(validation_rows(runs["run"])), counted, 30))
    capsys.readouterr()
    for name, message in (("other", "counts tokens of 'bpe-257', and these runs read"), ("no", "no bigram counts")):
        assert main([*words, str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.full
def test_examples(runs, tmp_path, capsys):
    """Kills: examples of a baseline that is the run, gaps of other windows, a picture that the next report refuses."""
    words = ["--slices", "recall", "--run", str(runs["run"]), "--out", str(tmp_path / "out"), "--examples", "1"]
    assert main(words) == 2
    assert "--examples compares the first run with a baseline" in capsys.readouterr().err
    for _ in range(2):
        assert main([*words, "--baseline", str(runs["baseline"])]) == 0
    shown = capsys.readouterr().out.split("Largest gaps of run to baseline on AR hits, in nats\n")[-1]
    ours, theirs = (list(validation_rows(runs[name])) for name in ("run", "baseline"))
    gaps = [np.subtract(a[3], b[3]) for a, b in zip(ours, theirs, strict=True)]
    printed = [float(word) for word in re.findall(r" ([+-]\d+\.\d)\]", shown)]
    assert printed
    assert any(all(np.abs(gap - each).min() < 0.051 for each in printed) for gap in gaps)
    assert (tmp_path / "out/examples.png").stat().st_size > 5_000
