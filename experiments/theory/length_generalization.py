"""Recall of a trained layer at untrained lengths: CAT (Li et al. 2025), Theorem 2, measured.

The theorem is on layers `f(X) = X_v^T softmax(X W x_{L-1})`, `X_v = X * F_v`, with a filter F_v >= 0 from time -w to w
and W = W_k W_q^T, on embeddings of length 1. If f answers all sequences of Definition 2 of one length L with an error
of at most eps, where `Delta = (1 - max (a.b)^2)^(1/2)` over two embeddings and `eps_0 = eps / Delta <= R_0 / L`, then

1. `|F_v - D_{-1}|_1 <= L eps_0`;
2. `|softmax(X W x_{L'-1}) - s*|_1 <= L' eps_0` at all lengths L', s* being 1/2 at both places of the query, else 0;
3. `|f(X) - y| <= R L' eps_0` at all lengths L'.

The constants R_0 and R are not printed. 3 follows from 1 and 2 with R = 2 (1 + L eps_0) + 2 L / L', for

    |f(X) - y| <= 2 |F_v|_1 |softmax(..) - s*|_1 + 2 |F_v - D_{-1}|_1.

**An error in the paper.** s* and F_v = D_{-1} give y / 2, since X ends after the query's second occurrence, which has
no value. Theorem 1 compensates by W_v = 2 I, which the form above lacks. Here W_v = 2 I, all else is as printed.

**The module.** Its filters are causal, so all are delayed by w: F_q = F_k = D_w, F_v has taps of the times -w .. w as
those of 0 .. 2 w, and the output is read w tokens after the query, at rows of zeros. The first w keys are then 0, with
a score of 0; s* is 0 there, and they count in 2. The tests train W_q, W_k and F_v, which is kept >= 0.

Measured quantities are maxima over the given sequences, not over all.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.theory.one_layer import set_projections, set_taps
from jaxzoo.mixers import ConvolutionAugmentedAttention, ConvolutionAugmentedAttentionConfig
from jaxzoo.utils.array_typing import Array, Float, Int


class Quantities(NamedTuple):
    """Quantities of Theorem 2, for one layer and sequences of one length."""

    filter_distance: Float[Array, ""]
    """|F_v - D_{-1}|_1."""
    map_distance: Float[Array, ""]
    """Largest |softmax(X W x_{L-1}) - s*|_1."""
    error: Float[Array, ""]
    """Largest |f(X) - y|."""


def theorem_2_layer(d: int, *, reach: int, seed: int = 0) -> ConvolutionAugmentedAttention:
    """Makes a layer of the theorem's form on d channels with random W_q, W_k and F_v; `reach` is w, of 2 w + 1 taps."""
    n_taps, rng = 2 * reach + 1, np.random.default_rng(seed)
    config = ConvolutionAugmentedAttentionConfig(d_model=d, n_taps=n_taps)
    layer = ConvolutionAugmentedAttention(config, rngs=nnx.Rngs(seed))
    queries, keys = rng.normal(size=(2, d, d)) / d
    set_projections(layer, queries=queries, keys=keys, values=2 * np.eye(d))
    for name in ("queries", "keys"):
        set_taps(layer, name, np.eye(n_taps)[reach])
    set_taps(layer, "values", rng.uniform(size=n_taps) / n_taps)
    return layer


def outputs(
    layer: ConvolutionAugmentedAttention, embeddings: Float[Array, "vocab d"], tokens: Int[Array, "b t"]
) -> Float[Array, "b d"]:
    return layer(jnp.pad(embeddings[tokens], ((0, 0), (0, layer.config.n_taps // 2), (0, 0))))[:, -1]


def attention_map(
    layer: ConvolutionAugmentedAttention, embeddings: Float[Array, "vocab d"], tokens: Int[Array, "b t"]
) -> Float[Array, "b w+t"]:
    """Returns the weights of f(X), without those of the w empty keys."""
    w = layer.k_proj.kernel[...] @ layer.q_proj.kernel[...].T * layer.config.head_width**-0.5
    scores = jnp.einsum("btd,de,be->bt", embeddings[tokens], w, embeddings[tokens[:, -1]])
    return jax.nn.softmax(jnp.pad(scores, ((0, 0), (layer.config.n_taps // 2, 0))), axis=1)


@nnx.jit
def measure(
    layer: ConvolutionAugmentedAttention, embeddings: Float[Array, "vocab d"], tokens: Int[Array, "b t"]
) -> Quantities:
    """Measures the theorem's quantities over rows of Definition 2: the last token occurs once before."""
    reach, asked = layer.config.n_taps // 2, tokens == tokens[:, -1:]
    taps = getattr(layer.head_filters, "values")[...][:, 0]  # noqa: B009 the type checker does not know it
    golden = jnp.pad(jnp.where(asked, 0.5, 0.0), ((0, 0), (reach, 0)))
    found = attention_map(layer, embeddings, tokens)
    errors = jnp.linalg.norm(outputs(layer, embeddings, tokens) - embeddings[answers(tokens)], axis=1)
    distance = jnp.abs(taps.at[reach - 1].add(-1.0)).sum()
    return Quantities(distance, jnp.abs(found - golden).sum(1).max(), errors.max())


def answers(tokens: Int[Array, "b t"]) -> Int[Array, "b"]:
    """Returns the token after the first occurrence of each row's last token."""
    place = (tokens == tokens[:, -1:]).argmax(1)
    return jnp.take_along_axis(tokens, place[:, None] + 1, axis=1)[:, 0]
