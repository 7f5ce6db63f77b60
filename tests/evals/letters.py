"""A tokenizer of few letters, a small model, and slow reference scores."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from jaxzoo.models import LanguageModel
from tests.models.hybrids import ALL_FIVE, hybrid_config, make_model

MAX_LENGTH = 70
"""No multiple of anything; between two sizes of a batch."""


class Letters:
    """Tokenizer with one id per letter and an end-of-text."""

    letters = "abcdefgh .\n"
    name, fingerprint = "letters", "letters-12"
    end_of_text, vocab_size = 11, 12
    begin, ends, begin_of_text = (), (11,), 11

    def prompt(self, text: str) -> np.ndarray:
        return np.concatenate([np.array(self.begin, np.uint16), self.encode(text)])

    def encode(self, text: str) -> np.ndarray:
        return np.array([self.letters.index(letter) for letter in text], np.uint16)

    def decode(self, ids) -> str:
        return self.to_bytes(np.asarray(ids)).decode()

    def to_bytes(self, ids) -> bytes:
        return "".join(self.letters[i] for i in ids if i != self.end_of_text).encode()

    def count_bytes(self, ids) -> int:
        return int(np.count_nonzero(np.asarray(ids) != self.end_of_text))


def letters_model(vocab_size: int = 20, **fields) -> LanguageModel:
    """Model with ids 12 to 19 beyond the tokenizer's, which are often the most likely."""
    pattern = (ALL_FIVE[0], ALL_FIVE[2], ALL_FIVE[4])
    return make_model(
        hybrid_config(pattern=pattern, n_layers=3, vocab_size=vocab_size, max_length=MAX_LENGTH, **fields), seed=2
    )


def some_text(seed: int, length: int) -> str:
    """Letters and spaces, without white space at its ends."""
    rng = np.random.default_rng(seed)
    return "".join(rng.choice(list("abcdefgh .,")[:9], length)).replace("  ", " a").strip().ljust(length, "a")


@functools.cache
def _forward(model: LanguageModel):
    return jax.jit(lambda tokens: model(tokens)[0])


def log_probs(model: LanguageModel, ids: Sequence[int]) -> np.ndarray:
    """Log probability of every row of the vocabulary after each of these, in float64, from one row alone.

    Zeros follow, unseen by what stands before them, so that one program serves all lengths.
    """
    row = np.zeros((1, MAX_LENGTH), np.int32)
    row[0, : len(ids)] = ids
    logits = np.asarray(_forward(model)(row), np.float64)[: len(ids), : model.config.vocab_size]
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def true_likelihood(model: LanguageModel, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
    """Log-likelihood of the continuation, token by token."""
    if not len(continuation):
        return 0.0, True
    rows = log_probs(model, [*context, *continuation][:-1])[len(context) - 1 :]
    total = sum(row[token] for row, token in zip(rows, continuation, strict=True))
    return total, all(row.argmax() == token for row, token in zip(rows, continuation, strict=True))


def true_continuation(model: LanguageModel, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Greedy continuation until end-of-text, one forward pass per token."""
    ids = list(prompt)
    while len(ids) < len(prompt) + max_tokens and (len(ids) == len(prompt) or ids[-1] != Letters.end_of_text):
        ids.append(int(log_probs(model, ids)[-1][: Letters.vocab_size].argmax()))
    return ids[len(prompt) :]
