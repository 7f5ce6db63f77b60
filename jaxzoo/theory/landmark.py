"""How many dimensions landmarks need: CAT (Li et al. 2025), Propositions 1 and 2, and the numbers of Figure 4.

Random context model (Definition 6): the last token x_L is a unit vector and stands once more in the context; all other
tokens have independent entries N(0, sigma^2 / d). Landmark CAT with `W_q = W_k = sqrt(c) I`, c large, recalls what
follows the first appearance of x_L if its block, of B tokens, is retrieved. With M = ceil(L / B):

- Proposition 1, `F_u = 1` for u < B. (A) It is retrieved with probability at least `1 - 3 exp(-t^2 / 4)` where
  `d >= 2 sigma^2 B (sqrt(log M) + t)^2`; (B) it is not, with the same probability, where
  `d <= 2 sigma^2 B (sqrt((1 - epsilon) log M) - t)^2`, for M large enough; (C) it is for all x_L of a subspace S at
  once where `d >= 2 sigma^2 B (sqrt(log M) + sqrt(dim S) + t)^2`.
- Proposition 2, `F_u = e^(-u / B)` for all u: it is retrieved, as in (A), where `d >= 50 B (sqrt(log M) + t)^2`. The
  paper prints no sigma^2 here; we scale by it.

The law. Landmarks meet the query as numbers: x_L has length 1, so that a sum of B tokens gives `sigma sqrt(B / d) z`
with z a standard normal, independent for each block, and the block of x_L gives `1 + sigma sqrt((B - 1) / d) z`. Under
exponential smoothing the numbers of neighbouring blocks depend on each other, `s_j = s_{j-1} / e + e_j`, and the
signal, less than 1 by its place in the block, goes on into later blocks. So one normal number per block is an exact
draw at any L, and d only scales them: each draw of the context has one critical dimension, above which retrieval
succeeds, and the share of draws that succeed at d is that of critical dimensions below d.

For (C): retrieval succeeds for all unit vectors of S if and only if `|P (n_j - n_0)| < 1` for all j, with `n_j` the sum
of the random tokens of block j, `n_0` that of the block of x_L, and P the projection to S. A draw needs two numbers a
block: the component along `P n_0`, and the squared length of the rest.

Readings of ours. The block of x_L is uniform among those before the last, as is its place in it. The own block, which
ends with the query, competes with none, so that M - 1 blocks do. `recall_layer` has the key delay of Theorem 1 where
the proposition has the value delay `F_v = D_{-1}`, which is not causal: each block then sums the tokens one before its
own, and what is retrieved is the block of the token after x_L.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers.attention.landmark_cat import LandmarkCAT, LandmarkCATConfig

Smoothing = Literal["mean", "exponential"]

NUMBERS = 2**22
"""Numbers of a simulation that exist at the same time."""


def critical_dimensions(
    n_draws: int,
    *,
    n_blocks: int,
    block_size: int,
    sigma: float = 1.0,
    smoothing: Smoothing = "mean",
    place: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """The critical dimension of each draw of the context, for one fixed query; float64 `(n_draws,)`.

    Args:
      n_draws: contexts.
      n_blocks: M, the query's own block included; at least 2.
      block_size: B.
      sigma: noise level.
      smoothing: "mean" for the filter of Proposition 1, "exponential" for that of Proposition 2.
      place: of x_L in its block, 0 for the first token; None: uniform. The mean does not see it.
      seed: of the draws.
    """
    rng, found = np.random.default_rng(seed), []
    for rows in _parts(n_draws, n_blocks - 1):
        target = rng.integers(n_blocks - 1, size=rows)
        places = rng.integers(block_size, size=rows) if place is None else np.full(rows, place)
        if smoothing == "mean":
            noise, signal = _of_means(rng, target, n_blocks - 1, block_size)
        else:
            noise, signal = _of_smoothing(rng, target, places, n_blocks - 1, block_size)
        here = np.arange(rows), target
        behind = noise - noise[here][:, None]
        margin = signal[here][:, None] - signal
        behind[here], margin[here] = 0, 1
        found.append(np.square(sigma * np.maximum(behind / margin, 0).max(axis=1)))
    return np.concatenate(found)


def uniform_critical_dimensions(
    n_draws: int, *, n_blocks: int, block_size: int, query_dim: int, sigma: float = 1.0, seed: int = 0
) -> np.ndarray:
    """The same for all queries of a subspace of `query_dim` dimensions at once; the filter is that of Proposition 1."""
    rng, found = np.random.default_rng(seed), []
    for rows in _parts(n_draws, 2 * (n_blocks - 2)):
        shape = rows, n_blocks - 2
        own = np.sqrt((block_size - 1) * rng.chisquare(query_dim, rows))
        along = math.sqrt(block_size) * rng.standard_normal(shape) - own[:, None]
        across = block_size * rng.chisquare(query_dim - 1, shape) if query_dim > 1 else 0.0
        found.append(sigma**2 * (along**2 + across).max(axis=1, initial=0))
    return np.concatenate(found)


def sufficient_dimension(
    t: float, *, n_blocks: int, block_size: int, sigma: float = 1.0, query_dim: int = 0, smoothing: Smoothing = "mean"
) -> float:
    """Bounds (A), (C) with `query_dim` above 0, and that of Proposition 2 (which has no (C))."""
    if smoothing == "exponential" and query_dim:
        raise ValueError(f"sufficient_dimension: query_dim={query_dim} must be 0 with smoothing='exponential'")
    factor = 2 if smoothing == "mean" else 50
    return factor * sigma**2 * block_size * (math.sqrt(math.log(n_blocks)) + math.sqrt(query_dim) + t) ** 2


def insufficient_dimension(
    t: float, *, n_blocks: int, block_size: int, sigma: float = 1.0, epsilon: float = 0.0
) -> float:
    """Bound (B); 0 where t is so large that it says nothing."""
    root = math.sqrt((1 - epsilon) * math.log(n_blocks)) - t
    return 2 * sigma**2 * block_size * max(root, 0.0) ** 2


def guarantee(t: float) -> float:
    """`1 - 3 exp(-t^2 / 4)`, the probability of the propositions; it says nothing up to t = 2.1."""
    return 1 - 3 * math.exp(-(t**2) / 4)


def recall_layer(d: int, block_size: int, *, smoothing: Smoothing = "mean", sharpness: float = 1000.0) -> LandmarkCAT:
    """`LandmarkCAT` with the parameters of the propositions: identities, and a delay of the keys by one token.

    `sharpness` is c over sqrt(d): the score of a unit vector with itself.
    """
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
    root = math.sqrt(sharpness * math.sqrt(d))
    for projection, scale in ((layer.q_proj, root), (layer.k_proj, root), (layer.v_proj, 1.0), (layer.out_proj, 1.0)):
        projection.kernel.set_value(scale * jnp.eye(d))
    filters: Any = layer.head_filters
    filters.keys.set_value(jnp.asarray([[0.0], [1.0]]))
    return layer


def _of_means(rng: np.random.Generator, target: np.ndarray, n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of `n` landmarks as the sum over a block: their noise, in units of sigma / sqrt(d), and their signal."""
    noise, signal = rng.standard_normal((len(target), n)), np.zeros((len(target), n))
    noise *= math.sqrt(size)
    here = np.arange(len(target)), target
    noise[here] *= math.sqrt((size - 1) / size)
    signal[here] = 1
    return noise, signal


def _of_smoothing(
    rng: np.random.Generator, target: np.ndarray, place: np.ndarray, n: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same for exponential smoothing, which goes on from one block to the next."""
    from scipy.signal import lfilter  # takes a second to import

    rho, kept = math.exp(-1 / size), math.exp(-1)
    weight = rho ** (size - 1.0 - place)  # of x_L at the end of its block; no noise has it
    own = (1 - rho ** (2 * size)) / (1 - rho**2)
    fresh = math.sqrt(own) * rng.standard_normal((len(target), n))
    here = np.arange(len(target)), target
    fresh[here] *= np.sqrt((own - weight**2) / own)
    noise = np.asarray(lfilter([1.0], [1.0, -kept], fresh, axis=1))
    after = np.arange(n)[None] - target[:, None]
    signal = np.where(after >= 0, weight[:, None] * kept ** np.maximum(after, 0), 0)
    return noise, signal


def _parts(n_draws: int, width: int) -> Iterator[int]:
    """Numbers of draws that are made at once."""
    most = max(1, NUMBERS // max(width, 1))
    for start in range(0, n_draws, most):
        yield min(most, n_draws - start)
