"""Number of dimensions that landmarks need: CAT (Li et al. 2025), Propositions 1 and 2.

Random context model (Definition 6): the last token x_L is a unit vector and stands once more in the context; all other
tokens have independent entries N(0, sigma^2 / d). Landmark CAT with `W_q = W_k = sqrt(c) I`, c large, recalls what
follows the first appearance of x_L if its block, of B tokens, is retrieved. With M = ceil(L / B):

- Proposition 1, `F_u = 1` for u < B. (A) It is retrieved with probability at least `1 - 3 exp(-t^2 / 4)` where
  `d >= 2 sigma^2 B (sqrt(log M) + t)^2`; (B) it is not, with the same probability, where
  `d <= 2 sigma^2 B (sqrt((1 - epsilon) log M) - t)^2`, for M large enough; (C) it is for all x_L of a subspace S at
  once where `d >= 2 sigma^2 B (sqrt(log M) + sqrt(dim S) + t)^2`.
- Proposition 2, `F_u = e^(-u / B)` for all u: it is retrieved, as in (A), where `d >= 50 B (sqrt(log M) + t)^2`. The
  paper prints no sigma^2 here; we scale by it.

`experiments/landmarks.py` draws from the law of this model, for the numbers of Figure 4.

Our reading. The block of x_L is uniform among the blocks before the last, and so is its position in the block. The
query's own block does not compete, so M - 1 blocks do. `recall_layer` has the key delay of Theorem 1 instead of the
proposition's value delay `F_v = D_{-1}`, which is not causal: each block then sums the tokens one before its own, and
the block of the token after x_L is retrieved.

Section 5 suggests to retrieve hierarchically within the block, at a cost of `d (M + log B)` per token, not `d (M + B)`:
`hierarchical_place` halves the retrieved block until one token is left. This takes M - 1 + 2 log B products, two per
level, and stores the sums of all levels, 2 L vectors, which the paper does not count. A part of B / 2^l tokens has less
noise than a block, and one rival instead of M: the bound of Proposition 1 remains the condition.
"""

import math
from typing import Literal

import numpy as np
from flax import nnx

from experiments.theory.one_layer import set_taps
from experiments.theory.parameters import write
from jaxzoo.mixers.attention.landmark_cat import LandmarkCAT, LandmarkCATConfig
from jaxzoo.utils.array_typing import Float, Int

Smoothing = Literal["mean", "exponential"]


def recall_layer(d: int, block_size: int, *, smoothing: Smoothing = "mean") -> LandmarkCAT:
    """Makes `LandmarkCAT` with the parameters of the propositions: identities, and keys delayed by one token."""
    config = LandmarkCATConfig(
        d_model=d,
        block_size=block_size,
        smoothing=smoothing,
        learn_rho=False,
        n_taps=2,
        filter_values=False,
        filter_init="delta",
    )
    layer = LandmarkCAT(config, rngs=nnx.Rngs(0))
    root = math.sqrt(1000 * math.sqrt(d))  # of c = 1000 sqrt(d): the score of a unit vector with itself is 1000
    for projection, scale in ((layer.q_proj, root), (layer.k_proj, root), (layer.v_proj, 1.0), (layer.out_proj, 1.0)):
        write(projection.kernel, scale * np.eye(d))
    set_taps(layer, "keys", np.array([0.0, 1.0]))
    return layer


def hierarchical_place(x: Float[np.ndarray, "b t d"], block_size: int) -> tuple[Int[np.ndarray, "b"], int]:
    """Returns the place of the earlier occurrence of the last token that the landmarks of blocks, of halves of a block,
    of quarters and so on find, and the number of products with the query. The length is a multiple of `block_size`, a
    power of 2."""
    b, t, d = x.shape
    query, n_blocks = x[:, -1], t // block_size - 1
    scores = np.einsum("bnd,bd->bn", x[:, :-block_size].reshape(b, n_blocks, block_size, d).sum(2), query)
    first, size, products = scores.argmax(1) * block_size, block_size, n_blocks
    while size > 1:
        size //= 2
        tokens = np.take_along_axis(x, first[:, None, None] + np.arange(2 * size)[None, :, None], axis=1)
        halves = np.einsum("bnd,bd->bn", tokens.reshape(b, 2, size, d).sum(2), query)
        first, products = first + size * halves.argmax(1), products + 2
    return first, products
