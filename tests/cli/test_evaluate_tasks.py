"""`jaxzoo evaluate --tasks`. Kills: a finished task that is scored again after a stop."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from jaxzoo.cli.evaluate import main
from jaxzoo.cli.evaluate_tasks import table
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.evals.recall_tasks import read_examples, score_recall
from jaxzoo.evals.text_model import TextModel
from jaxzoo.loading import load
from tests.cli.test_generate import files_of

needs_lm_eval = pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs pip install -e '.[eval]'")


@pytest.fixture(scope="module")
def data(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of two tasks: some answers are those of the model, half of the prompts are too long."""
    directory = tmp_path_factory.mktemp("tasks")
    loaded = load(trained_run, text=True)
    model = TextModel(loaded.model, loaded.tokenizer)
    texts = [f"{i} never odd " * (i % 2 or 4) for i in range(6)]
    said = model.continuations(texts, max_tokens=48, stops=("\n",))
    rows = [
        {"text": t, "value": s.strip()[:2] if i < 2 else "absent"}
        for i, (t, s) in enumerate(zip(texts, said, strict=True))
    ]
    for name in ("fda", "records"):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


@pytest.mark.parametrize("scorer", ["own", pytest.param("lm_eval", marks=needs_lm_eval)])
def test_the_table_and_the_file_are_the_library_s(scorer, trained_run, data, tmp_path, capsys):
    """Kills: another checkpoint, tasks that are left out, prompts cut in silence, a directory that is written to, a
    scorer that is not the one asked for."""
    before, out = files_of(trained_run), tmp_path / "out.json"
    flags = f"--run {trained_run} --tasks fda records --data {data} --scorer {scorer} --out {out} --batch-size 4"
    assert main(flags.split()) == 0
    captured = capsys.readouterr()
    report = json.loads(out.read_text())
    loaded = load(trained_run, text=True)
    model = TextModel(loaded.model, loaded.tokenizer)
    truth = score_recall(model, read_examples(data / "fda.jsonl"))
    assert truth["n"] == 6
    for name in ("fda", "records"):
        assert report["results"][name]["contains"] == truth["contains"]
        assert f"{name}" in captured.out
    assert f"{truth['contains']:.4f}" in captured.out
    assert (report["scorer"], report["step"], report["max_length"], report["limit"]) == (scorer, 4, 16, None)
    assert report["requests"] == {"total": 12, "truncated": 12}
    assert "12 of 12 requests lost their beginning; the model reads 16 tokens" in captured.err
    assert files_of(trained_run) == before


@pytest.mark.full
def test_a_stopped_evaluation_is_resumed(trained_run, data, tmp_path, capsys, monkeypatch):
    """Kills: a finished task that is asked again or lost, requests that are counted once more, results of another
    limit, of other data or of a damaged file that are taken over."""
    out, asked = tmp_path / "out.json", []
    data = Path(shutil.copytree(data, tmp_path / "data"))
    flags = f"--run {trained_run} --tasks fda records --data {data} --scorer own --limit 2 --out".split()
    assert main([*flags, str(tmp_path / "whole.json")]) == 0

    def score(model, examples):
        asked.append(len(asked))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return score_recall(model, examples)

    monkeypatch.setattr("jaxzoo.cli.evaluate_tasks.score_recall", score)
    assert main([*flags, str(out), "--resume"]) == 2
    assert "does not exist, so no task is finished" in capsys.readouterr().err
    assert main([*flags, str(out)]) == 130
    kept = out.read_text()
    assert list(json.loads(kept)["results"]) == ["fda"]
    for changed, damaged, message in (
        ([*flags, str(out), "--limit", "3"], kept, "--resume: limit is 3, and 2 in"),
        ([*flags, str(out), "--data.length", "8"], kept, "--resume: config.data.length is 8, and"),
        ([*flags, str(out)], kept.replace('"n": 2', '"n": 3'), "out.json: is damaged"),
    ):
        out.write_text(damaged)
        assert main([*changed, "--resume"]) == 2
        assert message in capsys.readouterr().err
    out.write_text(kept)
    assert main([*flags, str(out), "--resume"]) == 0
    assert len(asked) == 3
    assert "1 of 2 tasks are finished" in capsys.readouterr().err
    assert out.read_text() == (tmp_path / "whole.json").read_text()
    with (data / "fda.jsonl").open("a") as file:
        file.write(json.dumps({"text": "more", "value": "m"}) + "\n")
    assert main([*flags, str(out), "--resume"]) == 2
    assert "--resume: data.fda.jsonl is" in capsys.readouterr().err


@pytest.mark.full
def test_results_of_another_begin_token_are_not_resumed(trained_run, data, tmp_path, capsys, monkeypatch):
    """Kills: kept answers of a tokenizer whose begin token, which texts without context follow, has changed."""
    flags = f"--run {trained_run} --tasks fda --data {data} --scorer own --limit 1 --out {tmp_path / 'out.json'}"
    assert main(flags.split()) == 0
    monkeypatch.setattr(Tokenizer, "begin_of_text", property(lambda self: 7))
    assert main([*flags.split(), "--resume"]) == 2
    assert "--resume: begin_without_context.0 is 7, and" in capsys.readouterr().err


def test_table_lines_up():
    """Kills: a standard error next to another metric, columns out of line."""
    results = {
        "records": {"contains": 0.5, "contains_stderr": 0.25, "n": 1234},
        "gsm8k": {"exact_match,strict": 0.125, "exact_match_stderr,strict": 0.5, "n": 8},
    }
    assert [line.split() for line in table(results).splitlines()] == [
        ["task", "metric", "value", "stderr", "n"],
        ["records", "contains", "0.5000", "0.2500", "1,234"],
        ["gsm8k", "exact_match,strict", "0.1250", "0.5000", "8"],
    ]
    assert len({len(line) for line in table(results).splitlines()}) == 1
