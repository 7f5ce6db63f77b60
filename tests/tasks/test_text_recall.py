"""Recall tasks as text. Kills: distractors that answer the question."""

import re
from typing import Any

import numpy as np
import pytest

from jaxzoo.tasks.contract import check_oracle, check_shapes
from jaxzoo.tasks.text_recall import NeedleConfig
from tests.tasks.oracles import oracle

N = 40


@pytest.mark.full
def test_forms_of_needle_in_a_haystack(tmp_path):
    """Kills: a distractor of a key that is asked for, an essay cut inside a word, needles always in the order asked."""
    essay = tmp_path / "essay.txt"
    essay.write_text("The fog came in.\nNobody saw it! Was it late? It was, and cold.")
    essays: dict[str, Any] = {"type_haystack": "essay", "essay_path": str(essay)}
    forms: tuple[dict[str, Any], ...] = (
        {**essays, "type_needle_v": "uuids"},
        {**essays, "num_needle_k": 4, "num_needle_q": 4},
        {"type_haystack": "needle", "num_needle_k": 3},
        {"type_haystack": "needle", "type_needle_k": "uuids", "type_needle_v": "uuids"},
    )
    for fields in forms:
        config = NeedleConfig(length=1100, **fields)
        check_oracle(config, oracle, 8)
        check_shapes(config, 8)
        batch = config.labelled(0, np.arange(8))
        texts = [config.tokenizer.decode(row[row != config.padding]) for row in np.asarray(batch.tokens)]
        for text in texts:
            kind = fields.get("type_needle_v", "numbers")
            n_needles = text.count(f"One of the special magic {kind} for ")
            if "essay_path" in fields:
                hay = re.sub(r"One of the special magic [^.]*\. ?", "", text.splitlines()[1]).strip()
                assert hay.split() == (essay.read_text().split() * 99)[: len(hay.split())]
                assert n_needles == fields.get("num_needle_k", 1)
            else:
                keys = re.findall(r"magic \w+ for (\S+) is: ", text)
                asked = re.findall(r"The special magic \w+ for (\S+) ", text)[-1]
                assert keys.count(asked) == 1
                assert n_needles == len(keys) > 5
    many = NeedleConfig(type_haystack="needle").text(np.random.default_rng(0), 5000)  # of 440 keys
    keys = re.findall(r"magic \w+ for (\S+) is: ", many.prompt)
    assert len(keys) == 5001
    assert keys.count(re.findall(r"The special magic \w+ for (\S+) ", many.prompt)[-1]) == 1
    config = NeedleConfig(length=700, num_needle_k=3)
    texts = [config.tokenizer.decode(row) for row in np.asarray(config.labelled(0, np.arange(24)).tokens)]
    keys = [re.findall(r"numbers for (\S+) is: ", text) for text in texts]
    asked = [re.findall(r"The special magic number for (\S+) ", text)[0] for text in texts]
    assert {key.index(one) for key, one in zip(keys, asked, strict=True)} == {0, 1, 2}


def test_refuses_in_one_line():
    """Kills: more questions than needles, a text that cannot fit, a vocabulary without the tokenizer's ids."""
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"num_needle_q": 2}, "num_needle_q=2 must be at most num_needle_k=1"),
        ({"length": 100}, "length=100 must be at least .*, for an example without haystack"),
        ({"type_haystack": "essay"}, "essay_path='' must name a text file for type_haystack='essay'"),
        ({"essay_path": "a.txt"}, "essay_path='a.txt' needs type_haystack='essay'"),
        ({"type_haystack": "essay", "essay_path": "no/such"}, "essay_path='no/such' must be a UTF-8 text: .*No such"),
        ({"type_haystack": "paper"}, "type_haystack='paper' must be"),
        ({"vocab_size": 256}, "vocab_size=256 must be at least 257, the ids of the tokenizer"),
    )
    for fields, message in cases:
        with pytest.raises(ValueError, match=f"^NeedleConfig.{message}"):
            NeedleConfig(**fields)
