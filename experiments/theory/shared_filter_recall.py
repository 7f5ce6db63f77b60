"""One input-dependent filter for all distances solves MQAR from token ids, at a width independent of the length (ours).

The proof of Zoology's Theorem 4.5 gives every interaction distance a copy of the sequence
(`input_dependent_recall.py`). The programmatic filter of its experiments is one for all m distances, and brings a query
not the value at its own distance but the sum of the tokens at all of them. Two layers tell them apart, if each value is
first bound to its key. With random signs a(x) for a token, w of them, and none, zeros, for the filler 0:

    BaseConv, 2 taps             b_p = a(x_p) . a(x_{p-1})                     a pair, next to a(x_p) in other channels
    InputDependentConv, value    y_i = a(x_i) . sum_s b_{i - s + 1}            over the distances s of equal tokens

At the own distance the key is the query, `a . a = 1`, and the value's code is left; at the m - 1 others there are
products of three codes, random signs again. For another token t, `y . (a(v) - a(t))` has the mean w, and by Chernoff's
bound it is not positive with a probability of at most

    ((1 + exp(-1 / (2 (m - 1)))) / 2)^w  =  about exp(-w / (4 (m - 1)))

so `w = about 4 m log(vocab / error)` leaves a query wrong with a probability of `error`, whatever the length.

Assumed: the fillers are 0, keys are asked for once, and repeated keys stand at an even distance (`places="slots"`), so
that no distance leads from a query to a value and the key after it. Equal values are distances too, and count for m.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.theory.parameters import set_base_conv, write, zeros
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers import BaseConvConfig, Context, InputDependentConvConfig
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.mixers.conv.input_dependent_conv import InputDependentConv
from jaxzoo.utils.array_typing import Array, Float, Int

FILLER = 0


class SharedFilterRecall(nnx.Module):
    """`embedding` (vocab, 2 w) has the code twice; `bind` multiplies neighbors, `fetch` unbinds."""

    def __init__(self, embedding: nnx.Param[jax.Array], bind: BaseConv, fetch: InputDependentConv) -> None:
        self.embedding: nnx.Param[jax.Array] = embedding
        self.bind: BaseConv = bind
        self.fetch: InputDependentConv = fetch

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t w"]:
        """Returns the value's code plus noise at a repeated key; `logits` compares it with all codes."""
        bound = self.bind(self.embedding[...][tokens])
        return self.fetch(bound, Context(tokens=tokens))[..., bound.shape[2] // 2 :]

    def logits(self, y: Float[Array, "... w"]) -> Float[Array, "... vocab"]:
        """Returns the inner product with the code of every token."""
        return y @ self.embedding[...][:, : y.shape[-1]].T


def build(vocab_size: int, n_distances: int, *, error: float = 1e-6, seed: int = 0) -> SharedFilterRecall:
    """Builds the two layers; a query's answer is wrong with a probability of `error` over the codes, which `seed`
    draws. Raises `ValueError` unless `error` is in (0, 1)."""
    if not 0 < error < 1:
        raise ValueError(f"build: error={error} must be above 0 and below 1")
    w = width(vocab_size, n_distances, error)
    codes = np.random.default_rng(seed).choice([-1.0, 1.0], (vocab_size, w))
    codes[FILLER] = 0
    bind = zeros(BaseConv, BaseConvConfig(d_model=2 * w, n_taps=2))
    fetch = zeros(InputDependentConv, InputDependentConvConfig(d_model=2 * w, ignored_token=FILLER))
    first = np.arange(2 * w) < w
    first_to_second = np.eye(2 * w, k=w)
    set_base_conv(bind, first_to_second, first.astype(float), np.stack([first, ~first]).astype(float), np.zeros(2 * w))
    write(fetch.projection.kernel, first_to_second)
    table = jnp.asarray(np.tile(codes, 2), jnp.float32)
    return SharedFilterRecall(parameter(table, ("vocab", "embed"), is_embedding=True), bind, fetch)


def width(vocab_size: int, n_distances: int, error: float) -> int:
    """Returns w for m = `n_distances`: the smallest for which the bound, over all tokens, is `error`."""
    others = max(n_distances - 1, 1)
    return math.ceil(math.log(vocab_size / error) / -math.log((1 + math.exp(-1 / (2 * others))) / 2))
