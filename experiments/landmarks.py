"""Distribution of landmark scores (CAT, Propositions 1, 2; `experiments.theory.landmark`); points of CAT's Figure 4.

The score of a landmark is its product with the query x_L of length 1: a sum of B random tokens gives
`sigma sqrt(B / d) z` with z a standard normal, independent for each block, and the block of x_L gives
`1 + sigma sqrt((B - 1) / d) z`. Under exponential smoothing the scores of neighbouring blocks depend on each other,
`s_j = s_{j-1} / e + e_j`, and the signal, less than 1 by its position in the block, continues into later blocks. So one
normal number per block is an exact draw at any L, scaled by d: each draw of the context has one critical dimension,
above which retrieval succeeds, and the share of successes at d is the share of critical dimensions below d.

For (C): retrieval succeeds for all unit vectors of S if and only if `|P (n_j - n_0)| < 1` for all j, with `n_j` the sum
of the random tokens of block j, `n_0` that of the block of x_L, and P the projection to S. A draw needs two numbers a
block: the component along `P n_0`, and the squared length of the rest.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments.theory.landmark import Smoothing

SHARES = {"d at 10 %": 0.1, "d at 50 %": 0.5}
"""Shares of successful contexts at the ends of a band."""
LOW, HIGH = SHARES
BOUND = "bound"
"""Dimension of the proposition at t = 0."""
NUMBERS = 2**22
"""Limit of the numbers that a simulation holds at once."""


def band(*, length: int, block_size: int, smoothing: Smoothing, query_dim: int, draws: int) -> dict[str, float]:
    """Returns the dimensions at which a tenth and a half of random contexts retrieve the right block, and the bound. A
    context of `length` tokens has at least three blocks. With `query_dim` above 0 all queries of a space must succeed;
    0: one fixed query."""
    if length < 3 * block_size:
        raise ValueError(f"band: block_size={block_size} must be at most a third of length={length}")
    sizes: Any = {"n_blocks": -(-length // block_size), "block_size": block_size}
    if query_dim:
        found = uniform_critical_dimensions(draws, query_dim=query_dim, **sizes)
    else:
        found = critical_dimensions(draws, smoothing=smoothing, **sizes)
    bound = sufficient_dimension(0.0, query_dim=query_dim, smoothing=smoothing, **sizes)
    return {**{name: float(np.quantile(found, share)) for name, share in SHARES.items()}, BOUND: bound}


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
    """Returns the critical dimension of each random context for one fixed query; float64 `(n_draws,)`. `n_blocks` is M,
    the query's own block included; `block_size` is B; `sigma` the noise level; the filter is that of Proposition 1
    ("mean") or 2 ("exponential"); `place` is the index of x_L in its block, None: uniform."""
    rng, found = np.random.default_rng(seed), []
    for rows in _parts(n_draws, n_blocks - 1):
        target = rng.integers(n_blocks - 1, size=rows)
        places = rng.integers(block_size, size=rows) if place is None else np.full(rows, place)
        if smoothing == "mean":
            noise, signal = _of_means(rng, target, n_blocks - 1, block_size)
        else:
            noise, signal = _of_smoothing(rng, target, places, n_blocks - 1, block_size)
        here = np.arange(rows), target
        deficit = noise - noise[here][:, None]
        margin = signal[here][:, None] - signal
        deficit[here], margin[here] = 0, 1
        found.append(np.square(sigma * np.maximum(deficit / margin, 0).max(axis=1)))
    return np.concatenate(found)


def uniform_critical_dimensions(
    n_draws: int, *, n_blocks: int, block_size: int, query_dim: int, sigma: float = 1.0, seed: int = 0
) -> np.ndarray:
    """Simulates all queries of a subspace of `query_dim` dimensions at once; the filter is that of Proposition 1."""
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
    """Returns bounds (A), (C) with `query_dim` above 0, and that of Proposition 2 (which has no (C))."""
    if smoothing == "exponential" and query_dim:
        raise ValueError(f"sufficient_dimension: query_dim={query_dim} must be 0 with smoothing='exponential'")
    factor = 2 if smoothing == "mean" else 50
    return factor * sigma**2 * block_size * (math.sqrt(math.log(n_blocks)) + math.sqrt(query_dim) + t) ** 2


def _of_means(rng: np.random.Generator, target: np.ndarray, n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores of `n` landmarks that sum a block: noise, in units of sigma / sqrt(d), and signal."""
    noise, signal = rng.standard_normal((len(target), n)), np.zeros((len(target), n))
    noise *= math.sqrt(size)
    here = np.arange(len(target)), target
    noise[here] *= math.sqrt((size - 1) / size)
    signal[here] = 1
    return noise, signal


def _of_smoothing(
    rng: np.random.Generator, target: np.ndarray, place: np.ndarray, n: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same for exponential smoothing, which continues across blocks."""
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
    """Splits draws into parts that fit into `NUMBERS`."""
    most = max(1, NUMBERS // max(width, 1))
    for start in range(0, n_draws, most):
        yield min(most, n_draws - start)
