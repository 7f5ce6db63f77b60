"""Recall tasks of Based (sec. 6, Tables 1 to 3; App. E.3) scored without lm_eval, and our own `records`.

A task is a file of JSON lines, each an object with two strings (others are ignored, as in some sets of the hub):

    text   the document and the question, such as "...\nType of Test:"
    value  the answer

The model continues the text greedily until a newline or 48 tokens; the example is right if the continuation contains
the value, ignoring case. Prompts, limits and score are as in lm_eval's tasks of the same names (version 1), so that
the numbers are equal; `jaxzoo.tasks.records` makes the files of `records`.

lm_eval 0.4.13 gives squad_completion 256 tokens, up to an empty line, because defaults of its configs replace the
task's 48 tokens and newline; `jaxzoo.evals.lm_eval_tasks` restores them.
"""

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.config.json_files import read_json_lines
from jaxzoo.evals.text_model import TextModel

RECALL_TASKS = {
    "fda": "hazyresearch/based-fda",
    "swde": "hazyresearch/based-swde-v2",
    "squad_completion": "hazyresearch/based-squad",
    "records": "",
}
"""Set of each task on the Hugging Face hub, whose split `validation` is scored; empty: none."""

MAX_TOKENS = 48
STOPS = ("\n",)
"""Strings that end a continuation, besides end-of-text."""


class RecallExample(NamedTuple):
    """Question and answer, without surrounding white space."""

    prompt: str
    """Document and question."""
    value: str


def read_examples(path: Path, limit: int | None = None) -> list[RecallExample]:
    """Returns the first `limit` examples of a file; None: all. Raises `ValueError` if there is none, or a line is not
    an object with the strings `text` and `value`; `OSError` if the file cannot be read."""
    rows = read_rows(path, limit)
    for number, row in enumerate(rows, 1):
        wrong = [name for name in ("text", "value") if not isinstance(row.get(name), str)]
        if wrong:
            raise ValueError(f"{path}:{number}: {wrong[0]} must be a string; it is {row.get(wrong[0])!r}")
    return [RecallExample(row["text"].strip(), row["value"].strip()) for row in rows]


def read_rows(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    """Returns the first `limit` objects of a file of JSON lines; None: all. Raises as `read_examples`."""
    rows = list(itertools.islice(read_json_lines(path, dict), limit))
    if not rows:
        raise ValueError(f"{path}: must have at least one line")
    return rows


def score_recall(model: TextModel, examples: Sequence[RecallExample]) -> dict[str, float]:
    """Evaluates the model on all examples. Returns metrics as `jaxzoo.evals.lm_eval_tasks`: `contains`, the share of
    examples whose continuation contains the value; `contains_stderr`, its standard error, for at least two examples;
    `n`, their number."""
    said = model.continuations([example.prompt for example in examples], max_tokens=MAX_TOKENS, stops=STOPS)
    right = [contains(text, example.value) for text, example in zip(said, examples, strict=True)]
    mean = sum(right) / len(right)
    n = len(right)
    stderr = {"contains_stderr": math.sqrt(mean * (1 - mean) / (n - 1))} if n > 1 else {}
    return {"contains": mean, **stderr, "n": n}


def contains(text: str, value: str) -> bool:
    """Returns whether the text contains the value, ignoring case as lm_eval's regular expression does (a small sharp s
    is not two s)."""
    return re.search(re.escape(value), text, re.IGNORECASE) is not None
