"""`python -m jaxzoo.evaluate --slices recall` from run directories to table, JSON and picture."""

import dataclasses
import functools
import json
import math
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from jaxzoo.cli import evaluate_slices
from jaxzoo.cli.evaluate import main
from jaxzoo.cli.train import main as train
from jaxzoo.config.config_io import to_json
from jaxzoo.data.statistics.bigram_counts import count_bigrams
from jaxzoo.data.tokens.token_shards import TokenizedDocument, shard_name, write_manifest, write_shard
from jaxzoo.evals.recall_slices import RecallSums
from jaxzoo.evals.validation import Validation
from jaxzoo.loading import load
from jaxzoo.loading.trained import read_run
from jaxzoo.train.session import Session
from tests.cli.test_generate import files_of
from tests.data.recall_reference import bigram_counts
from tests.evals.slices_reference import CountedBigrams, check_sections, slow_sections
from tests.train.conftest import use_one_device

AT_MOST = 9
BIGRAMS = CountedBigrams({(a, b): (7 * a + b) % 20 for a in range(257) for b in range(257)})
"""Occurrences in some training."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, trained_run):
    """`{name: directory}`: the trained run, a baseline, and copies of the run as if it had been on other data."""
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
    """`measured(*flags)`: what the command writes about its runs, with bigram counts of the training text."""

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


@pytest.mark.slow
def test_two_runs_against_the_slow_search(runs, measured, tmp_path, capsys):
    """Kills: nats of padding, of another run or position; numbers that a batch size changes; runs written to."""
    before = [files_of(runs[name]) for name in ("run", "baseline")]
    found = measured("--run", "run", "--baseline", "baseline", "--at-most", str(AT_MOST), bigrams=BIGRAMS)
    captured = capsys.readouterr()
    slow = {name: slow_sections(list(validation_rows(runs[name])), BIGRAMS, AT_MOST) for name in ("run", "baseline")}
    assert [model["name"] for model in found["models"]] == ["run", "baseline"]
    for model in found["models"]:
        assert slow[model["name"]]["slices"].keys() >= {"AR hits", "frequent repeats"}
        check_sections(model, slow[model["name"]])
    means = {name: {k: np.mean(v) for k, v in each["slices"].items()} for name, each in slow.items()}
    share = len(slow["run"]["slices"]["AR hits"]) / len(slow["run"]["slices"]["all tokens"])
    gap, behind = (means["run"][k] - means["baseline"][k] for k in ("all tokens", "AR hits"))
    formula = found["models"][0]["share_of_gap"]["formula"]
    assert formula == pytest.approx(min(behind * share / gap, 1.0), rel=1e-3)
    assert captured.out == (tmp_path / "out" / "table.md").read_text()
    assert f"{formula:.1%}" in captured.out
    assert (tmp_path / "out" / "recall.png").read_bytes().startswith(b"\x89PNG")
    assert [files_of(runs[name]) for name in ("run", "baseline")] == before
    assert str(tmp_path) not in (tmp_path / "out" / "recall.json").read_text()


@pytest.mark.full
def test_all_tokens_have_the_loss_of_the_run(runs, measured, capsys):
    """Kills: another model path than validation's; slices of training that nobody counted."""
    last = json.loads((runs["run"] / "metrics.jsonl").read_text().splitlines()[-1])
    found = measured("--run", "run")
    (model,) = found["models"]
    assert model["slices"]["all tokens"]["nats"] == pytest.approx(last["valid/loss"], rel=1e-6)
    assert model["slices"]["all tokens"]["tokens"] == 64
    assert (found["at_most"], found["baseline"], model["repeated_by_frequency"]) == (None, None, {})
    assert "without --bigrams nothing is known of training" in capsys.readouterr().err


@pytest.mark.slow
def test_overridden_fields_hold_for_all_runs(measured):
    """Kills: lengths that differ between run and baseline; an override that is dropped."""
    found = measured("--run", "short", "--run", "run", "--baseline", "baseline", "--data.length", "8")
    assert [model["name"] for model in found["models"]] == ["short", "run", "baseline"]
    assert "share_of_gap" in found["models"][1]
    whole = measured("--run", "run")["models"][0]["slices"]["repeated bigrams"]["tokens"]
    assert found["models"][1]["slices"]["repeated bigrams"]["tokens"] < whole


@pytest.mark.full
def test_counts_on_disk_of_the_run_s_own_tokens(runs, tmp_path, capsys):
    """Kills: counts of another tokenizer's ids, of pairs the other way round, or that nobody reads."""
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
def test_a_model_that_knows_nothing(runs):
    """Kills: a slice whose mean is not that of its tokens: uniform logits give log(vocabulary) everywhere."""
    session = Session(read_run(runs["run"])[1])
    with jax.set_mesh(session.mesh):
        variables = jax.tree.map(lambda x: x * 0, session.init_state().variables)
        sums = RecallSums(None)
        for batch, nats in Validation(session).target_nats(variables):
            sums.add(batch, nats)
    for score in (score for score in sums.sections().slices.values() if score.tokens):
        assert score.nats == pytest.approx(math.log(257), rel=1e-6)
        assert score.standard_error == pytest.approx(0, abs=1e-5)


@pytest.mark.full
def test_one_line_for_a_mistake(runs, capsys, tmp_path):
    """Kills: a traceback, or numbers of two texts in one table."""
    for flags, message in [
        ([], "--run DIR is required"),
        (["--slices", "colour", "--run", "run"], "invalid choice 'colour' for argument '--slices'"),
        (["--run", "run", "--at-most", "-1"], "--at-most -1 must not be negative"),
        (["--run", "run", "--at-most", "x"], "--at-most: 'x' must be INT"),
        (["--run", "run", "--baseline", "run"], "is named twice"),
        (["--run", "/no/such"], "/no/such does not exist"),
        (["--run", "run", "--out", "/no/such/place"], "--out /no/such/place: its directory does not exist"),
        (["--run", "run", "--out", "run"], "which no report of recall wrote"),
        (["--run", "run", "--data.lenth", "8"], "unknown option --data.lenth; did you mean --data.length?"),
        (["--run", "run", "--model.n-layers", "4"], "variable stacks/0"),
        (["--run", "run", "--data.length", "64"], "LanguageModelConfig.max_length=16 must be at least the 64 tokens"),
        (["--run", "run", "--checkpoint", "1"], "checkpoint 1 must be one of 3, 4"),
        (["--run", "run", "--baseline", "short"], "data.length is 8 in short, 16 in run"),
        (["--run", "lengths"], "of several lengths, 8, 16"),
    ]:
        assert main(["--slices", "recall", *(str(runs.get(flag, flag)) for flag in flags)]) == 2
        captured = capsys.readouterr()
        *said, line = captured.err.splitlines()
        assert message in line
        assert all(", checkpoint " in each for each in said)
        assert captured.out == ""


@pytest.mark.slow
def test_a_task_with_labels_of_its_own_is_refused(run_copy, tiny_config, capsys):
    """Kills: slices of a recall task, whose targets are answers."""
    directory = run_copy()
    config = dataclasses.replace(read_run(directory)[1], data=tiny_config.data)
    (directory / "config.json").write_text(json.dumps(to_json(config)))
    assert main(["--slices=recall", "--run", str(directory)]) == 2
    assert "recall slices need text" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.full
def test_runs_of_one_name_go_by_their_paths(runs, measured, tmp_path):
    """Kills: two columns of one name."""
    shutil.copytree(runs["run"], tmp_path / "copy" / "run")
    found = measured("--run", "run", "--baseline", str(tmp_path / "copy" / "run"))
    assert [model["name"] for model in found["models"]] == [str(runs["run"]), str(tmp_path / "copy" / "run")]
    share = found["models"][0]["share_of_gap"]
    assert (share["formula"], share["case"]) == (None, "there is no gap overall")
