"""One convolution-augmented attention answers many queries, and says where there is no match: CAT, Definition 5.

The paper has no theorem on MQNAR. The key delay of Theorem 1 (`jaxzoo.theory.ngram_recall`) answers every query whose
gram stands exactly once before it, wherever the query stands, for it reads nothing after it. The value delay does not:
it adds to the answer the token after the query.

"No match" needs more. Softmax attends to something even if all scores are low, so there must be a key of a fixed score
between a match and all else. Here the sequence starts with a token of its own, followed by N times the token
`NO_MATCH`: to whatever recalls that first token, the answer is "no match". Its direction z is at a right angle to all
other embeddings, as is that of `NO_MATCH`, which no query contains. Queries get a bias:

    q_t = sqrt(c) (g_t + theta z),        theta = 1 - m / 2.

The scores are then c for a match, at most `theta c` for keys with the first token in their gram, whose values are all
`NO_MATCH`, with equality at the first of them, and at most c (1 - m) for all others: a gap of m c / 2. By the bound of
`one_layer.sharpness`, `c = 2 log(4 L / eps) / m` suffices.
"""

import math

import jax.numpy as jnp
import numpy as np

from jaxzoo.array_typing import Array, Float, Int
from jaxzoo.models import LanguageModel
from jaxzoo.tasks.ngram_recall import NO_MATCH
from jaxzoo.theory.ngram_recall import margin, ngram_recall_config, recall_sharpness, set_ngram_recall
from jaxzoo.theory.one_layer import one_layer_model
from jaxzoo.theory.parameters import write


def multi_query_recall_model(
    embeddings: Float[np.ndarray, "vocab d"], taps: Float[np.ndarray, "n"], *, length: int
) -> LanguageModel:
    """A model whose likeliest token at the end of a gram is what followed it before, or `NO_MATCH`.

    It reads `with_opening` of the tokens; its vocabulary has one token more, the first of a sequence.

    Args:
      embeddings: of length 1; their row `NO_MATCH` is not read.
      taps: F, the newest token's first.
      length: tokens of the longest sequence, without the opening.

    Raises:
      ValueError: two grams have one direction.
    """
    vocab_size, d = embeddings.shape
    table = np.zeros((vocab_size + 1, d + 2))
    table[:-1, :d] = embeddings
    table[NO_MATCH] = np.eye(d + 2)[d]
    table[-1] = np.eye(d + 2)[d + 1]
    n_tokens = length + len(taps) + 1
    model, layer = one_layer_model(ngram_recall_config(len(taps), d + 2, bias=True), table, max_length=n_tokens)
    c = 2 * recall_sharpness(table[:-1], taps, length=n_tokens, from_start=False)
    set_ngram_recall(layer, taps, c=c, delay="key")
    theta = 1 - margin(table[:-1], taps, from_start=False) / 2
    z = np.sign(taps[0]) * table[-1]
    write(layer.q_proj.bias, math.sqrt((d + 2) * c) * theta * z)
    return model


def with_opening(tokens: Int[Array, "b t"], *, n_gram: int, vocab_size: int) -> Int[Array, "b t+n+1"]:
    """The tokens after the first one, `vocab_size`, and `n_gram` times `NO_MATCH`."""
    opening = np.array([vocab_size] + [NO_MATCH] * n_gram, np.int32)
    return jnp.concatenate([jnp.tile(opening, (len(tokens), 1)), tokens], axis=1)
