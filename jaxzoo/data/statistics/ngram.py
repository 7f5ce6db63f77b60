"""Unigram and bigram baselines: scores that a model must beat before it has learnt anything about text.

Both are counted on the training tokens and scored on the same targets as the model.

- unigram, add-one: `p(w) = (c(w) + 1) / (N + V)`, N training tokens, V the vocabulary;
- bigram, interpolated with it by Witten-Bell smoothing (Witten and Bell 1991; Chen and Goodman 1998):
  `p(w | v) = (c(v, w) + u(v) p(w)) / (c(v) + u(v))`, where `u(v)` is the number of different tokens seen
  after v and `c(v)` how often v was followed by any; `p(w)` itself where v was never followed. The lower
  order `p(w)` is the add-one unigram above.

The token before is always the input token, so the first target of a window has its true predecessor. Pairs
with an end-of-text token count like any others, as the model sees them.
"""

import math
from typing import Protocol

import numpy as np
from jaxtyping import Float64, Int64, Integer

from jaxzoo.data.base import Score

CHUNK = 2**22
"""Training pairs counted at once: bounds the memory of the int64 copies to some 100 MB."""

LARGEST_TABLE = 512
"""Ids of the largest vocabulary whose bigrams are counted: a table has 8 bytes for each pair of them."""


class Tokens(Protocol):
    """Array of token ids, or an object with its slices."""

    def __len__(self) -> int:
        """Number of tokens."""
        ...

    def __getitem__(self, index: slice, /) -> Integer[np.ndarray, "t"]:
        """Tokens of a slice."""
        ...


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """Returns total nats / ln 2 / total bytes of text; `bytes_per_token` as in `Dataset.bytes_per_token`, positive.

    The nats are those of all target tokens, end-of-text included: a model pays for predicting the end of a document.
    The bytes are those that the targets stand for, and end-of-text stands for none.
    """
    return nats_per_token / math.log(2) / bytes_per_token


def ngram_baselines(
    train: Tokens,
    tokens: Integer[np.ndarray, "..."],
    targets: Integer[np.ndarray, "..."],
    *,
    vocab_size: int,
    n_bytes: int,
) -> dict[str, Score]:
    """Scores the baselines, `{"unigram": ..., "bigram": ...}`; the unigram alone above `LARGEST_TABLE` ids.

    Args:
        train: training tokens, at least 1, ids in `[0, vocab_size)`; read once, in parts.
        tokens: input tokens of the validation windows.
        targets: the token after each of `tokens`, of the same shape.
        vocab_size: V.
        n_bytes: how many bytes of text `targets` stand for, positive.
    """
    bytes_per_token = n_bytes / targets.size
    if vocab_size > LARGEST_TABLE:
        unigram = (count_tokens(train, vocab_size) + 1) / (len(train) + vocab_size)
        return {"unigram": score(unigram[targets], bytes_per_token)}
    pairs = _count_pairs(train, vocab_size)
    counts = pairs.sum(axis=0)
    counts[train[:1]] += 1  # the only token that is no pair's second
    unigram = (counts + 1) / (len(train) + vocab_size)
    bigram = _witten_bell(pairs, unigram)
    return {
        "unigram": score(unigram[targets], bytes_per_token),
        "bigram": score(bigram[tokens, targets], bytes_per_token),
    }


def count_tokens(train: Tokens, vocab_size: int) -> Int64[np.ndarray, "vocab"]:
    """Counts each token."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(train), CHUNK):
        counts += np.bincount(train[start : start + CHUNK], minlength=vocab_size)
    return counts


def _count_pairs(train: Tokens, vocab_size: int) -> Int64[np.ndarray, "vocab vocab"]:
    """Counts how often each token (column) follows each token (row)."""
    counts = np.zeros(vocab_size**2, np.int64)
    for start in range(0, len(train) - 1, CHUNK):
        chunk = train[start : start + CHUNK + 1].astype(np.int64)
        counts += np.bincount(chunk[:-1] * vocab_size + chunk[1:], minlength=vocab_size**2)
    return counts.reshape(vocab_size, vocab_size)


def _witten_bell(
    pairs: Int64[np.ndarray, "vocab vocab"], unigram: Float64[np.ndarray, "vocab"]
) -> Float64[np.ndarray, "vocab vocab"]:
    """`p(column | row)`, see the module docstring."""
    followers = np.count_nonzero(pairs, axis=1, keepdims=True)
    followers[followers == 0] = 1  # a row without counts is then the unigram, not 0 / 0
    return (pairs + followers * unigram[None, :]) / (pairs.sum(axis=1, keepdims=True) + followers)


def score(probability: Float64[np.ndarray, "..."], bytes_per_token: float) -> Score:
    """Scores predictions by the probabilities that they gave the targets."""
    nats = -float(np.mean(np.log(probability)))
    return Score(nats, bits_per_byte(nats, bytes_per_token), math.exp(nats))
