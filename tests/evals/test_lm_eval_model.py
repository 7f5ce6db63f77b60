"""Models in lm_eval. Kills: answers in another order, other windows than lm_eval's."""

import json

import numpy as np
import pytest

from jaxzoo.evals.text_model import TextModel
from tests.evals.letters import Letters, letters_model, some_text

pytest.importorskip("lm_eval", reason="needs pip install -e '.[eval]'")

from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows

from jaxzoo.evals.lm_eval_model import LMEvalModel
from jaxzoo.evals.lm_eval_tasks import score_tasks
from jaxzoo.evals.text_model import windows


@pytest.fixture(scope="module")
def text_model() -> TextModel:
    return TextModel(letters_model(), Letters(), batch_size=3)


def instances(kind: str, *arguments: tuple) -> list[Instance]:
    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]  # type: ignore[arg-type]


def test_windows_are_lm_eval_s():
    """Kills: perplexities that are not comparable with published ones."""
    for n in [1, 4, 5, 17]:
        theirs = list(get_rolling_token_windows(list(range(n)), -1, 4, 1))
        ours = [
            (list(each.tokens[:-1]), list(each.tokens[-each.n_scored :])) for each in windows([-1], list(range(n)), 4)
        ]
        assert ours == [(list(read), list(scored)) for read, scored in theirs]


def test_answers_are_the_text_model_s(text_model):
    """Kills: answers in another order, a rolling score of the context alone, options of one request used for all."""
    adapter = LMEvalModel(text_model)
    pairs = [("abc", " d"), ("bad ", "cab"), ("", "head")]
    scores = adapter.loglikelihood(instances("loglikelihood", *pairs))
    assert scores == [tuple(score) for score in text_model.log_likelihoods(pairs)]
    assert [type(greedy) for _, greedy in scores] == [bool] * 3
    texts = ["abc d", some_text(1, 90)]
    rolling = adapter.loglikelihood_rolling(instances("loglikelihood_rolling", *[(text,) for text in texts]))
    assert rolling == text_model.text_log_likelihoods(texts)
    asked = [
        ("abc", {"until": ["d"], "max_gen_toks": 9}),
        ("bad", {"until": "h", "max_gen_toks": 5, "do_sample": False, "temperature": 0.0}),
        ("head", {"until": ["d"], "max_gen_toks": 9}),
    ]
    said = adapter.generate_until(instances("generate_until", *asked))
    one, three = text_model.continuations(["abc", "head"], max_tokens=9, stops=("d",))
    assert said == [one, *text_model.continuations(["bad"], max_tokens=5, stops=("h",)), three]


def test_draws_are_refused(text_model):
    """Kills: a task that wants samples and gets the greedy text in silence."""
    adapter = LMEvalModel(text_model)
    with pytest.raises(ValueError, match="must not ask for draws"):
        adapter.generate_until(instances("generate_until", ("abc", {"do_sample": True})))


ROWS: dict[str, dict] = {
    "hellaswag": {"activity_label": "bad", "ctx_a": "a cab", "ctx_b": "had", "endings": ["a", "bed"], "label": "1"},
    "piqa": {"goal": "feed", "sol1": "a cab", "sol2": "a head", "label": 1},
    "arc_easy": {"question": "a", "choices": {"text": ["a", "bad", "cab"], "label": ["A", "B", "C"]}, "answerKey": "B"},
    "winogrande": {"sentence": "a _ fed", "option1": "cab", "option2": "bee", "answer": "1"},
    "boolq": {"passage": "a", "question": "b", "label": 0},
    "cb": {"premise": "a", "hypothesis": "b", "label": 2},
    "sglue_rte": {"premise": "a", "hypothesis": "b", "label": 0},
    "copa": {"premise": "a cab.", "choice1": "Bad.", "choice2": "Fed.", "question": "cause", "label": 0},
    "multirc": {"paragraph": "a", "question": "b", "answer": "c", "label": 0},
    "record": {"passage": "a", "query": "b @placeholder", "entities": ["c", "d"], "answers": ["c"]},
    "wic": {"sentence1": "a bed", "sentence2": "bed", "start1": 2, "end1": 5, "label": 1},
    "wsc": {"text": "Ed fed a cab and he fed", "span1_text": "Ed", "span2_text": "he", "span2_index": 5, "label": 1},
}
"""The columns that are documented, and no other."""


@pytest.mark.parametrize("name", ["piqa", "hellaswag"])
def test_a_missing_column_is_named(name, tmp_path, monkeypatch):
    """Kills: a task that scores the name of a column as its text."""
    monkeypatch.setattr("jaxzoo.evals.lm_eval_tasks._load", lambda name, custom_dataset: custom_dataset())
    row = {key: value for key, value in ROWS[name].items() if key != "label"}
    (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps(ROWS[name])}\n{json.dumps(row)}\n")
    with pytest.raises(ValueError, match=f"{name}.jsonl:2: label is missing, which the task reads"):
        score_tasks(TextModel(letters_model(), Anything()), [name], data=tmp_path)


class Anything(Letters):
    """Tokenizer that maps unknown letters to known ones."""

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(letter) % 11 for letter in text], np.uint16)
