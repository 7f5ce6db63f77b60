"""Scored texts, one row at a time. Kills: padding that is scored, context that is lost."""

import numpy as np
import pytest

from jaxzoo.data.tokenizer import END_OF_TEXT
from jaxzoo.evals.text_model import TextModel, windows
from jaxzoo.mixers import NystromFormerConfig
from jaxzoo.models import LanguageModel
from tests.evals.letters import (
    MAX_LENGTH,
    Letters,
    letters_model,
    some_text,
    true_continuation,
    true_likelihood,
)
from tests.models.hybrids import hybrid_config, make_model

TOKENIZER = Letters()
PAIRS = [
    ("abc", " d"),
    ("abc ", "def"),
    ("", "cab"),
    ("   ", "a"),
    ("head", ""),
    (some_text(2, 66), some_text(3, 4)),
    ("a", some_text(4, 69)),
]
"""All of them fit into the window."""


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return letters_model()


def text_model(model: LanguageModel, **options) -> TextModel:
    return TextModel(model, TOKENIZER, **{"batch_size": 3, **options})


def test_scores_are_those_of_single_rows_without_padding(model):
    """Kills: padding that is seen or scored, rows given to others, a window off by one, rows of the head that the
    tokenizer lacks and that are left out of the sum (lm_eval has them), white space at the
    end of a context that is scored or lost."""
    scores = text_model(model).log_likelihoods(PAIRS)
    for (context, continuation), score in zip(PAIRS, scores, strict=True):
        before = context.rstrip()
        ids = list(TOKENIZER.encode(before)) or [TOKENIZER.end_of_text]
        rest = TOKENIZER.encode((context + continuation)[len(before) :])
        log_prob, is_greedy = true_likelihood(model, ids, rest)
        assert score.log_prob == pytest.approx(log_prob, rel=1e-5, abs=1e-5)
        assert score.is_greedy == is_greedy


def test_what_the_model_would_say_is_greedy_and_nothing_else_is():
    """Kills: a greedy flag that looks at one token alone."""
    model = letters_model(vocab_size=TOKENIZER.vocab_size)
    said = TOKENIZER.decode(true_continuation(model, TOKENIZER.encode("abc.h"), 6))
    assert len(set(said)) > 1
    other = said[:-1] + ("a" if said[-1] != "a" else "b")
    first = ("a" if said[0] != "a" else "b") + said[1:]
    scores = text_model(model).log_likelihoods([("abc.h", text) for text in (said, other, first)])
    assert [score.is_greedy for score in scores] == [True, False, False]


def test_a_long_context_loses_its_beginning_and_is_counted(model):
    """Kills: truncation on the right, by one token too many or too few, or in silence."""
    asked = text_model(model)
    text = some_text(5, 100)
    exact = text[-(MAX_LENGTH + 1) :]
    scores = asked.log_likelihoods([(text[:90], text[90:]), (exact[:-10], exact[-10:])])
    ids = TOKENIZER.encode(exact)
    truth = true_likelihood(model, ids[:-10], ids[-10:])[0]
    assert [score.log_prob for score in scores] == pytest.approx([truth, truth], rel=1e-5)
    assert asked.requests == (2, 1)


def test_windows_score_every_token_once_with_most_before_it():
    """Kills: tokens that are left out or counted twice, windows that are too long, context thrown away."""
    for n_context, n in [(1, 10), (1, 4), (1, 1), (3, 9), (6, 2), (2, 0)]:
        ids, seen = np.arange(n_context + n), []
        for window in windows(ids[:n_context], ids[n_context:], 4):
            read, end = window.tokens[:-1], window.tokens[-1] + 1
            assert list(window.tokens) == list(range(end - len(window.tokens), end))
            assert len(read) == min(4, end - 1)
            seen += list(range(end - window.n_scored, end))
        assert seen == list(range(n_context, n_context + n))


def test_whole_texts_are_scored_window_by_window(model):
    """Kills: a first token that nobody scores, texts that run into each other, windows added to the wrong text."""
    asked = text_model(model)
    texts = ["bad", some_text(6, 2 * MAX_LENGTH + 13), "", "h"]
    ids = [TOKENIZER.end_of_text, *TOKENIZER.encode(texts[1])]
    truths = [true_likelihood(model, [TOKENIZER.end_of_text], TOKENIZER.encode(text))[0] for text in ("bad", "h")]
    n = MAX_LENGTH
    long = sum(
        true_likelihood(model, ids[start:scored], ids[scored:end])[0]
        for start, scored, end in ((0, 1, n + 1), (n, n + 1, 2 * n + 1), (n + 13, 2 * n + 1, 2 * n + 14))
    )
    assert asked.text_log_likelihoods(texts) == pytest.approx([truths[0], long, 0.0, truths[1]], rel=1e-5)
    assert asked.requests == (0, 0)


@pytest.mark.full
def test_continuations_are_the_greedy_ones(model):
    """Kills: rows given to others, ids that the tokenizer lacks, text after end-of-text or beyond the limit, an empty
    prompt that fails, rows that fill up a batch and answer."""
    prompts = ["abc", "", some_text(7, 33), "h", some_text(8, 9)]
    truths = []
    for prompt in prompts:
        ids = list(TOKENIZER.encode(prompt)) or [TOKENIZER.end_of_text]
        truths.append(TOKENIZER.decode(true_continuation(model, ids, 20)))
    assert len(set(truths)) == len(truths)
    assert text_model(model).continuations(prompts, max_tokens=20) == truths


@pytest.mark.full
def test_a_continuation_ends_before_its_stop_string(model):
    """Kills: a stop string that is kept, or found only where a token begins with it."""
    whole = text_model(model).continuations(["abc.h"], max_tokens=20)[0]
    stop = whole[5:8]
    cut = whole[: whole.index(stop)]
    assert text_model(model).continuations(["abc.h", "d"], max_tokens=20, stops=(stop, ",,"))[0] == cut


def test_what_sees_the_future_is_refused():
    """Kills: scores of a model that sees the target."""
    seeing = make_model(hybrid_config(pattern=(NystromFormerConfig(n_heads=2),), n_layers=1))
    with pytest.raises(ValueError, match="layer 0: NystromFormerConfig sees the future"):
        TextModel(seeing, TOKENIZER)
    with pytest.raises(ValueError, match="batch_size=0 must be positive"):
        text_model(letters_model(), batch_size=0)


def test_begin_tokens_come_before_every_text(model):
    """Kills: a model that was trained with a begin token and is scored without it, or with it twice."""

    class WithBegin(type(TOKENIZER)):
        begin = (10,)

    asked = TextModel(model, WithBegin(), batch_size=2)
    ids = [10, *TOKENIZER.encode("abc")]
    scores = asked.log_likelihoods([("abc", "de"), ("", "de")])
    truths = [true_likelihood(model, before, TOKENIZER.encode("de"))[0] for before in (ids, [10])]
    assert [score.log_prob for score in scores] == pytest.approx(truths, rel=1e-5)
    assert asked.text_log_likelihoods(["de"]) == pytest.approx([truths[1]], rel=1e-5)

    class OnRequest(type(TOKENIZER)):  # lm_eval begins a document with it, too
        begin_of_text = 10

    assert TextModel(model, OnRequest()).text_log_likelihoods(["de"]) == pytest.approx([truths[1]], rel=1e-5)
    said = TOKENIZER.decode(true_continuation(model, ids, 4))
    assert asked.continuations(["abc"], max_tokens=4) == [said.removesuffix(END_OF_TEXT)]
