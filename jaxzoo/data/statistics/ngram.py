"""N-gram baselines for language models of text and DNA.

All are counted on the training tokens and scored on the same targets as the model. The lowest order is the add-one
share `p_0(w) = (c(w) + 1) / (N + V)`, N training tokens, V the vocabulary. Each higher order k is interpolated with the
next lower one by Witten-Bell smoothing (Witten and Bell 1991; Chen and Goodman 1998):

    p_k(w | c) = (n(c, w) + u(c) p_(k-1)(w | c')) / (n(c) + u(c))

n counts the training tokens w after the k tokens c, u(c) is the number of different tokens seen after c, and c' is c
without its first one; where c was never followed by any, p_k is p_(k-1).

- Text: unigram and bigram, k = 0 and 1. Pairs with an end-of-text count like any others, as the model sees them.
- DNA: k = 0 to 11. Contexts and counts are of the four bases. If N or an end-of-text is among the last k tokens,
  the next lower order is used. N and end-of-text have their add-one share, so that probabilities sum to 1 over all six
  tokens. These are strong baselines: bacterial genomes are mostly genes, and 11 bases cover three codons.

Contexts are the tokens before a target in the validation text, across windows; a model sees only its window.
"""

import math
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Float64, Int64, Integer

from jaxzoo.data.base import Score
from jaxzoo.data.tokenizer import DNATokenizer

CHUNK = 2**22
"""Training tokens counted at once; limits the memory of int64 copies to some 100 MB."""
LARGEST_TABLE = 512
"""Largest vocabulary whose bigrams are counted, in a table of 8 bytes per pair."""
BASES = 4
HIGHEST_ORDER = 11
"""Highest order of a Markov model of DNA; its counts, 4^12 numbers, take 128 MB."""


class Tokens(Protocol):
    """Array of token ids, or an object with its slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> Integer[np.ndarray, "t"]: ...


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """Returns total nats / ln 2 / total bytes of text; `bytes_per_token` as in `Dataset.bytes_per_token`, positive. The
    nats include those of end-of-text tokens: a model pays for predicting the end of a document. End-of-text stands for
    no byte."""
    return nats_per_token / math.log(2) / bytes_per_token


def ngram_baselines(
    train: Tokens,
    tokens: Integer[np.ndarray, "..."],
    targets: Integer[np.ndarray, "..."],
    *,
    vocab_size: int,
    n_bytes: int,
) -> dict[str, Score]:
    """Scores the baselines of text, `{"unigram": ..., "bigram": ...}`; above `LARGEST_TABLE` ids the unigram only.
    `train` is read once per order, in parts; `targets` holds the token after each of `tokens`, in all `n_bytes` bytes
    of text."""
    tokens, targets, bytes_per_token = tokens.ravel(), targets.ravel(), n_bytes / targets.size
    p = _shares(train, vocab_size)[targets]
    scores = {"unigram": _score(p, bytes_per_token)}
    if vocab_size <= LARGEST_TABLE:
        p = _refined(p, _counts(train, 1, vocab_size), tokens, targets, 1)
        scores["bigram"] = _score(p, bytes_per_token)
    return scores


def markov_baselines(
    train: Tokens, tokens: Integer[np.ndarray, "t"], targets: Integer[np.ndarray, "t"], *, highest: int = HIGHEST_ORDER
) -> dict[str, Score]:
    """Scores each order of DNA, `{"order-0": ..., "order-11": ...}`. `train` is read once per order, in parts;
    `targets` holds the token after each of `tokens`."""
    is_base = targets < BASES
    bytes_per_token = DNATokenizer().count_bytes(targets) / targets.size
    share = _shares(train, DNATokenizer.vocab_size)
    bases = share[:BASES].sum()
    p = share[np.where(is_base, targets, 0)] / bases
    scores = {}
    for order in range(highest + 1):
        if order:
            p = _refined(p, _counts(train, order, BASES), tokens, targets, order)
        scores[f"order-{order}"] = _score(np.where(is_base, p * bases, share[targets]), bytes_per_token)
    return scores


def _shares(train: Tokens, vocab_size: int) -> Float64[np.ndarray, "vocab"]:
    """Computes `p_0` of each token."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(train), CHUNK):
        counts += np.bincount(train[start : start + CHUNK], minlength=vocab_size)
    return (counts + 1) / (len(train) + vocab_size)


def _counts(train: Tokens, order: int, n_ids: int) -> Int64[np.ndarray, "contexts ids"]:
    """Counts how often each id below `n_ids` follows each context of `order` of them."""
    counts = np.zeros(n_ids ** (order + 1), np.int64)
    for start in range(0, len(train), CHUNK):
        text = np.asarray(train[max(start - order, 0) : start + CHUNK])
        known, context = _contexts(text, order, n_ids)
        following = text[order:]
        known &= following < n_ids
        counts += np.bincount(context[known] * n_ids + following[known], minlength=len(counts))
    return counts.reshape(-1, n_ids)


def _contexts(
    text: Integer[np.ndarray, "t"], order: int, n_ids: int
) -> tuple[Bool[np.ndarray, "t-order"], Int64[np.ndarray, "t-order"]]:
    """Returns, for each place from `order` on, whether the tokens before it are all below `n_ids`, and their index."""
    n = max(len(text) - order, 0)
    known = np.ones(n, bool)
    context = np.zeros(n, np.int64)
    for i in range(order):
        part = text[i : i + n]
        known &= part < n_ids
        context = context * n_ids + np.minimum(part, n_ids - 1)
    return known, context


def _refined(
    lower: Float64[np.ndarray, "t"],
    counts: Int64[np.ndarray, "contexts ids"],
    tokens: Integer[np.ndarray, "t"],
    targets: Integer[np.ndarray, "t"],
    order: int,
) -> Float64[np.ndarray, "t"]:
    """Computes `p_k` of each target from `p_(k-1)`; unchanged if the context holds other tokens than ids."""
    n_ids = counts.shape[1]
    known, context = _contexts(np.concatenate([tokens, targets[-1:]]), order, n_ids)
    context = context[known]
    seen = np.count_nonzero(counts, axis=1)[context]
    total = counts.sum(axis=1)[context]
    at = np.flatnonzero(known) + order - 1  # place of the target whose context this is
    own = counts[context, np.minimum(targets[at], n_ids - 1)]
    refined = lower.copy()
    refined[at] = np.where(total > 0, (own + seen * lower[at]) / np.maximum(total + seen, 1), lower[at])
    return refined


def _score(probability: Float64[np.ndarray, "t"], bytes_per_token: float) -> Score:
    nats = -float(np.mean(np.log(probability)))
    return Score(nats, bits_per_byte(nats, bytes_per_token), math.exp(nats))
