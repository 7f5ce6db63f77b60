"""Markov baselines of DNA: prediction of the next base from the last k, k = 0 to 11.

    p_k(w | c) = (n(c, w) + u(c) p_(k-1)(w | c')) / (n(c) + u(c))

Witten and Bell's interpolation with the next lower order: n counts the training bases, u(c) is the number of different
bases seen after the k bases c, and c' is c without its first one; p_0 is the add-one share of each of the four bases.
Contexts are the bases before a target in the validation text, across windows: a model that reads a window alone knows
less at its beginning. Where N or an end-of-text stands among them, the order below counts. N and end-of-text
themselves have the add-one share of their kind, so that probabilities sum to 1 over all six tokens.

These are strong baselines: bacterial genomes are mostly genes, whose codons a context of 11 bases knows.
"""

import numpy as np
from jaxtyping import Float64, Int64, Integer

from jaxzoo.data.base import Score
from jaxzoo.data.statistics.ngram import Tokens, count_tokens, score
from jaxzoo.data.tokenizer import DNATokenizer

BASES = 4
HIGHEST_ORDER = 11
"""The counts of its contexts, 4^12 numbers, take 128 MB."""
CHUNK = 2**22
"""Training tokens that are counted at once."""


def markov_baselines(
    train: Tokens, tokens: Integer[np.ndarray, "t"], targets: Integer[np.ndarray, "t"], *, highest: int = HIGHEST_ORDER
) -> dict[str, Score]:
    """Scores each order, `{"order-0": ..., "order-11": ...}`.

    Args:
        train: training tokens of `DNATokenizer`; read once for each order, in parts.
        tokens: input tokens of the validation windows, one after the other.
        targets: the token after each of `tokens`.
        highest: the highest order.
    """
    is_base = targets < BASES
    bytes_per_token = DNATokenizer().count_bytes(targets) / targets.size
    kinds = count_tokens(train, DNATokenizer.vocab_size)
    share = (kinds + 1) / (kinds.sum() + len(kinds))
    bases = share[:BASES].sum()
    p = share[np.where(is_base, targets, 0)] / bases
    scores = {}
    for order in range(highest + 1):
        if order:
            p = _refined(p, _counts(train, order), tokens, targets, order)
        scores[f"order-{order}"] = score(np.where(is_base, p * bases, share[targets]), bytes_per_token)
    return scores


def _refined(
    lower: Float64[np.ndarray, "t"],
    counts: Int64[np.ndarray, "contexts base"],
    tokens: Integer[np.ndarray, "t"],
    targets: Integer[np.ndarray, "t"],
    order: int,
) -> Float64[np.ndarray, "t"]:
    """Computes `p_k` of each target from `p_(k-1)`; unchanged where the context holds no k bases."""
    text = np.concatenate([tokens, targets[-1:]])
    known, context = _contexts(text, order)
    rows = counts[context[known]]
    seen, total = np.count_nonzero(rows, axis=1), rows.sum(axis=1)
    at = np.flatnonzero(known) + order - 1  # place of the target whose context this is
    own = rows[np.arange(len(rows)), np.minimum(targets[at], BASES - 1)]
    refined = lower.copy()
    refined[at] = np.where(total > 0, (own + seen * lower[at]) / np.maximum(total + seen, 1), lower[at])
    return refined


def _counts(train: Tokens, order: int) -> Int64[np.ndarray, "contexts base"]:
    """Counts how often each base follows each context of `order` bases."""
    counts = np.zeros(BASES ** (order + 1), np.int64)
    for start in range(0, len(train), CHUNK):
        text = np.asarray(train[max(start - order, 0) : start + CHUNK])
        known, context = _contexts(text, order)
        following = text[order:]
        known &= following < BASES
        counts += np.bincount(context[known] * BASES + following[known], minlength=len(counts))
    return counts.reshape(-1, BASES)


def _contexts(
    text: Integer[np.ndarray, "t"], order: int
) -> tuple[Integer[np.ndarray, "t-order"], Int64[np.ndarray, "t-order"]]:
    """Returns, for each place from `order` on, whether the tokens before it are all bases, and their number."""
    n = max(len(text) - order, 0)
    known, context = np.ones(n, bool), np.zeros(n, np.int64)
    for i in range(order):
        part = text[i : i + n]
        known &= part < BASES
        context = context * BASES + np.minimum(part, BASES - 1)
    return known, context
