"""Recall tasks without lm_eval. Kills: scores that differ from lm_eval's."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxzoo.evals.recall_tasks import RECALL_TASKS, read_examples, score_recall
from jaxzoo.evals.text_model import TextModel
from tests.evals.letters import Letters, letters_model, some_text

SAID = [" K180209, a number", "nothing", " strasse", "(a.b)", "", "axb"]
VALUES = [" k180209 ", "Nothing more", "STRASSE", "(A.B)", "v", "a.b"]


class Stub:
    """Model that returns given answers and records the prompts."""

    requests, max_length = (0, 0), 9

    def __init__(self):
        self.asked: list[Any] = []

    def continuations(self, prompts: Sequence[str], *, max_tokens: int, stops: Sequence[str]) -> list[str]:
        self.asked.append((list(prompts), max_tokens, list(stops)))
        return SAID


def write(path: Path, rows: Sequence[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def stub_file(tmp_path) -> Path:
    """Examples that the stub answers: white space at the ends, letters in both cases, a regular expression."""
    rows = [{"text": f" document {i}\nkey:\n", "key": "key", "value": value} for i, value in enumerate(VALUES)]
    return write(tmp_path / "fda.jsonl", rows)


def test_score_by_hand(stub_file):
    """Kills: prompts with white space at their ends, another limit or stop, a share of the wrong whole."""
    stub: Any = Stub()
    score = score_recall(stub, read_examples(stub_file))
    assert stub.asked == [([f"document {i}\nkey:" for i in range(6)], 48, ["\n"])]
    assert score == {"contains": 0.5, "contains_stderr": pytest.approx(math.sqrt(0.3 / 6)), "n": 6}


def test_damaged_files_are_named_by_line(tmp_path):
    """Kills: a damaged line that becomes a wrong answer."""
    for text, message in [
        ("", "must have at least one line"),
        ('{"text": "a", "value": "b"}\n{"text"', "x.jsonl:2: must be JSON"),
        ("[1]", r"x.jsonl:1: \[1\] must be an object"),
        ('{"text": "a", "value": 3}', "x.jsonl:1: value must be a string; it is 3"),
        ('{"value": "a"}', "x.jsonl:1: text must be a string; it is None"),
    ]:
        (tmp_path / "x.jsonl").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_examples(tmp_path / "x.jsonl")


def lm_eval_tasks() -> Any:
    pytest.importorskip("lm_eval", reason="needs pip install -e '.[eval]'")
    from jaxzoo.evals import lm_eval_tasks

    return lm_eval_tasks


@pytest.mark.parametrize("name", RECALL_TASKS)
def test_lm_eval_says_the_same_of_what_is_said(name, stub_file):
    """Kills: a task of lm_eval whose prompt, limit, stop or score is another than ours."""
    tasks, stub, other = lm_eval_tasks(), Stub(), Stub()
    file: Any = stub_file.rename(stub_file.with_name(f"{name}.jsonl"))
    theirs = tasks.score_tasks(stub, [name], data=file.parent)
    ours = score_recall(other, read_examples(file))  # type: ignore[arg-type]
    assert stub.asked == other.asked
    assert theirs == {name: {"contains": ours["contains"], "n": ours["n"]}}


def test_lm_eval_says_the_same_of_a_model(tmp_path):
    """Kills: an adapter that hands prompts, limits or texts on wrongly."""
    tasks = lm_eval_tasks()
    model = TextModel(letters_model(), Letters(), batch_size=4)
    texts = [some_text(seed, 20 + seed) for seed in range(6)]
    said = model.continuations(texts, max_tokens=48, stops=("\n",))
    values = [text[2:4] if i % 2 else "hhh.a" for i, text in enumerate(said)]
    assert all(value.strip() for value in values)
    write(tmp_path / "swde.jsonl", [{"text": t, "value": v} for t, v in zip(texts, values, strict=True)])
    ours = score_recall(model, read_examples(tmp_path / "swde.jsonl"))
    assert 0 < ours["contains"] < 1
    assert tasks.score_tasks(model, ["swde"], data=tmp_path) == {"swde": {"contains": ours["contains"], "n": 6}}
    limited = score_recall(model, read_examples(tmp_path / "swde.jsonl", 3))
    assert tasks.score_tasks(model, ["swde"], data=tmp_path, limit=3)["swde"] == {
        "contains": limited["contains"],
        "n": 3,
    }
