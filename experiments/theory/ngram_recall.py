"""One convolution-augmented attention recalls N-grams: CAT (Li et al. 2025), Corollary 1, Theorem 1, Definition 5.

Definition 3: the last N tokens of a sequence, the query, stand in it exactly once before, and the answer is the token
after them. With a filter F of N taps, `g_t = norm((X * F)_t)` is the direction of the N tokens that end at t. Queries
are the g, `W_q = W_k = sqrt(c) I`, `c = c_0 log(4 L / eps)`, eps the smallest distance between two embeddings.

- **Key delay**: `K = norm(X * D_1 * F)`, `W_v = I`, V = X: key j is g_{j-1}, and value j the token after that gram.
- **Value delay**: keys are the g, `F_v = D_{-1}`, `W_v = 2 I`: value j is x_{j+1}. Two keys equal the query, the
  gram's and its own; after the last token X ends, so that the own value is 0, half the weight is lost, and W_v
  makes up for it.

D_{-1} looks at the token to come. A causal layer gives the same with all filters delayed by one, `F_q = F_k = D_1 * F`
and `F_v = D_0`, one token later, at a row of zeros, which is what the printed filter sees after the end; its first
key, which is 0, is the one that a row of zeros in front would give to the printed layer. That causal layer is the
module here. It answers one query, at the end: at an earlier one, the token after it would join the answer. Corollary 1
is the key delay of N = 1 with F = 1; no norm is then needed.

**The constant.** Let m be 1 minus the largest product of g_t with another g, one of fewer tokens at the start of a
sequence included, and at most 1, for a delay leaves the first key 0. Then c_0 = 1/m suffices, by the bound of
`one_layer.sharpness`: with key delay the answer has a score of c, all others at most c (1 - m). With value delay, let
the two keys have the weight p each; the output is off by at most 1 - 2 p of the answer and 2 (1 - 2 p) of the rest,
together at most 3 (L - 1)/2 eps / (4 L) < eps / 2.

**Almost all F.** m > 0 unless two grams x and y (newest first, y shorter at the start of a sequence: y_a = 0) have
parallel sums; then all coefficients of the polynomial `sum_a F_a x_a wedge sum_b F_b y_b` in F vanish, or F is one of
its zeros, which have measure 0. The coefficient of F_a^2 is `x_a wedge y_a`: if it vanishes, x_a = y_a, as long as no
embedding is the opposite of another, or y_a = 0. Of grams of the same length, x = y. If y has n < N tokens, the
coefficient of F_a F_b, b < n <= a, is `x_a wedge y_b`: all tokens of both are the same one.

So Theorem 1, for N > 1, needs two more assumptions than are printed. (1) No embedding is the opposite of another:
norm(F_0 a + F_1 a) = norm(F_0 a + F_1 (-a)) if |F_1| < |F_0|. (2) The query is not one token N times over while the
sequence starts with this token, or else the sums `F_0 + .. + F_n`, n < N - 1, have the other sign than the sum of F:
then the shorter gram is the opposite of the longer. `separating_taps` draws such filters; `margin` with
`from_start=False` leaves this case out, as its caller must.

**Many queries (Definition 5, ours).** The paper has no theorem on MQNAR. The key delay of Theorem 1 answers every query
whose gram stands exactly once before it, wherever the query stands, for it reads nothing after it. The value delay does
not: it adds to the answer the token after the query.

"No match" needs more. Softmax attends to something even if all scores are low, so there must be a key of a fixed score
between a match and all else. Here the sequence starts with a token of its own, followed by N times the token
`NO_MATCH`: to whatever recalls that first token, the answer is "no match". Its direction z is at a right angle to all
other embeddings, as is that of `NO_MATCH`, which no query contains. Queries get a bias:

    q_t = sqrt(c) (g_t + theta z),        theta = 1 - m / 2.

The scores are then c for a match, at most `theta c` for keys with the first token in their gram, whose values are all
`NO_MATCH`, with equality at the first of them, and at most c (1 - m) for all others: a gap of m c / 2. By the bound of
`one_layer.sharpness`, `c = 2 log(4 L / eps) / m` suffices.

float32 rounds products to about 1e-7, so that m should be above 1e-5.

In all functions `embeddings` have length 1, and no two are equal; `taps` are F, the newest token's first; `length` is
that of the longest sequence, the row of zeros of the value delay not counted; `from_start=False` leaves out case (2).
"""

import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.theory.one_layer import one_layer_model, set_projections, set_taps, sharpness
from experiments.theory.parameters import write
from jaxzoo.mixers import ConvolutionAugmentedAttention, ConvolutionAugmentedAttentionConfig
from jaxzoo.models import LanguageModel
from jaxzoo.tasks.ngram_recall import NO_MATCH
from jaxzoo.utils.array_typing import Array, Float, Int

Delay = Literal["key", "value"]

SMALLEST_MARGIN = 1e-5
"""Directions of grams closer than this are equal in float32."""


def associative_recall_layer(embeddings: Float[np.ndarray, "vocab d"], *, length: int) -> ConvolutionAugmentedAttention:
    """Makes the layer of Corollary 1: its output at the last token is the embedding of that token's value."""
    d = embeddings.shape[1]
    config = ConvolutionAugmentedAttentionConfig(d_model=d, n_taps=2, filter_queries=False, filter_values=False)
    layer = ConvolutionAugmentedAttention(config, rngs=nnx.Rngs(0))
    _set_projections(layer, c=recall_sharpness(embeddings, np.ones(1), length=length), value_scale=1.0)
    set_taps(layer, "keys", np.array([0.0, 1.0]))
    return layer


def ngram_recall_layer(
    embeddings: Float[np.ndarray, "vocab d"],
    taps: Float[np.ndarray, "n"],
    *,
    length: int,
    delay: Delay = "key",
    from_start: bool = True,
) -> ConvolutionAugmentedAttention:
    """Makes the layer of Theorem 1: its output at the last token is the embedding of the value of the last `n` tokens.
    With `delay="value"` the last token is a row of zeros after the query. Raises `ValueError` if two grams have one
    direction."""
    config = ngram_recall_config(len(taps), embeddings.shape[1], d_model=embeddings.shape[1])
    layer = ConvolutionAugmentedAttention(config, rngs=nnx.Rngs(0))
    c = recall_sharpness(embeddings, taps, length=length, from_start=from_start)
    set_ngram_recall(layer, taps, c=c, delay=delay)
    return layer


def ngram_recall_model(
    embeddings: Float[np.ndarray, "vocab d"],
    taps: Float[np.ndarray, "n"],
    *,
    length: int,
    delay: Delay = "key",
    from_start: bool = True,
) -> LanguageModel:
    """Makes `ngram_recall_layer` a language model: its likeliest token at the last one is the value. With
    `delay="value"` token 0 has no embedding, and occurs only after the query."""
    model_length, known = length, embeddings
    if delay == "value":
        model_length, known = length + 1, embeddings[1:]
        embeddings = np.concatenate([np.zeros_like(embeddings[:1]), known])
    config = ngram_recall_config(len(taps), embeddings.shape[1])
    model, layer = one_layer_model(config, embeddings, max_length=model_length)
    c = recall_sharpness(known, taps, length=length, from_start=from_start)
    set_ngram_recall(layer, taps, c=c, delay=delay)
    return model


def multi_query_recall_model(
    embeddings: Float[np.ndarray, "vocab d"], taps: Float[np.ndarray, "n"], *, length: int
) -> LanguageModel:
    """Makes a model whose likeliest token at the end of a gram is what followed it before, or `NO_MATCH`. It reads
    `with_opening` of the tokens, which `length` does not count; its vocabulary has one more token, the first of a
    sequence. Raises `ValueError` if two grams have one direction."""
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
    """Prepends one token `vocab_size` and `n_gram` times `NO_MATCH`."""
    opening = np.array([vocab_size] + [NO_MATCH] * n_gram, np.int32)
    return jnp.concatenate([jnp.tile(opening, (len(tokens), 1)), tokens], axis=1)


def ngram_recall_config(
    n_gram: int, d: int, *, d_model: int | None = None, bias: bool = False
) -> ConvolutionAugmentedAttentionConfig:
    return ConvolutionAugmentedAttentionConfig(
        d_model=d_model, head_dim=d, n_taps=n_gram + 1, filter_values=False, normalize=True, qkv_bias=bias
    )


def set_ngram_recall(
    layer: ConvolutionAugmentedAttention, taps: Float[np.ndarray, "n"], *, c: float, delay: Delay
) -> None:
    now, delayed = np.append(taps, 0.0), np.append(0.0, taps)
    _set_projections(layer, c=c, value_scale=1.0 if delay == "key" else 2.0)
    set_taps(layer, "keys", delayed)
    set_taps(layer, "queries", now if delay == "key" else delayed)


def recall_sharpness(
    embeddings: Float[np.ndarray, "vocab d"],
    taps: Float[np.ndarray, "n"],
    *,
    length: int,
    from_start: bool = True,
) -> float:
    """Returns c of the module docstring. Raises `ValueError` if two grams have one direction."""
    m = margin(embeddings, taps, from_start=from_start)
    if m < SMALLEST_MARGIN:
        raise ValueError(
            f"margin={m:.1e} must be at least {SMALLEST_MARGIN}: two {len(taps)}-grams have one direction; take other "
            "taps, such as separating_taps"
        )
    return sharpness(length, smallest_distance(embeddings), m)


def smallest_distance(embeddings: Float[np.ndarray, "vocab d"]) -> float:
    """Returns eps, for embeddings of length 1."""
    return float(np.sqrt(2 - 2 * _largest_product(embeddings, embeddings)))


def margin(embeddings: Float[np.ndarray, "vocab d"], taps: Float[np.ndarray, "n"], *, from_start: bool = True) -> float:
    """Returns m of the module docstring, over all pairs of grams: `vocab^(2 n) d` multiply-adds. For orthogonal
    embeddings, whose products are all equal, 2 n of them have the margin of all."""
    if len(taps) > 1 and np.ptp((embeddings @ embeddings.T)[~np.eye(len(embeddings), dtype=bool)]) < 1e-9:
        embeddings = embeddings[: 2 * len(taps)]
    sums = np.zeros((1, embeddings.shape[1]))
    directions = []
    for tap in taps:
        sums = (sums[:, None] + tap * embeddings[None]).reshape(-1, embeddings.shape[1])
        directions.append(sums / np.linalg.norm(sums, axis=1, keepdims=True))
    full = directions.pop()
    shorter = directions if from_start else []
    return 1 - max([0.0, _largest_product(full, full), *(_largest_product(full, d, same=False) for d in shorter)])


def separating_taps(n_gram: int, *, seed: int) -> Float[np.ndarray, "n"]:
    """Draws normal taps until orthogonal embeddings have a margin of 0.01 from the start of a sequence on. The sums of
    the first taps then have the other sign than the sum of all, and no two sums are nearly equal."""
    rng = np.random.default_rng(seed)
    while True:
        taps = rng.normal(size=n_gram)
        if margin(np.eye(2 * n_gram), taps) > 0.01:
            return taps


def _set_projections(layer: ConvolutionAugmentedAttention, *, c: float, value_scale: float) -> None:
    unit = np.eye(layer.config.head_width)
    set_projections(layer, queries=np.sqrt(c) * unit, keys=np.sqrt(c) * unit, values=value_scale * unit)


def _largest_product(x: np.ndarray, y: np.ndarray, *, same: bool = True) -> float:
    largest = -1.0
    for start in range(0, len(x), 1024):  # bounds the memory
        part = x[start : start + 1024]
        products = part @ (y[start:] if same else y).T
        if same:
            products[np.arange(len(part)), np.arange(len(part))] = -1.0
        largest = max(largest, float(products.max()))
    return largest
