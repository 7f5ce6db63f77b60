"""Computation at a point of CAT's Figure 4."""

from typing import Any

import numpy as np

from jaxzoo.theory.landmark import (
    Smoothing,
    critical_dimensions,
    sufficient_dimension,
    uniform_critical_dimensions,
)

SHARES = {"d at 10 %": 0.1, "d at 50 %": 0.5}
"""Shares of the contexts that succeed at the ends of a band."""
LOW, HIGH = SHARES
BOUND = "bound"
"""Dimension of the proposition at t = 0."""


def band(*, length: int, block_size: int, smoothing: Smoothing, query_dim: int, draws: int) -> dict[str, float]:
    """The dimensions at which a tenth and a half of random contexts retrieve the right block, and the bound.

    Args:
      length: tokens of a context.
      block_size: tokens of a block; at least three blocks.
      smoothing: of landmarks.
      query_dim: dimensions of the space of queries, which succeed all at once; 0: one fixed query.
      draws: contexts.

    Raises:
      ValueError: fewer than three blocks, in which nothing competes.
    """
    if length < 3 * block_size:
        raise ValueError(f"band: block_size={block_size} must be at most a third of length={length}")
    sizes: Any = {"n_blocks": -(-length // block_size), "block_size": block_size}
    if query_dim:
        found = uniform_critical_dimensions(draws, query_dim=query_dim, **sizes)
    else:
        found = critical_dimensions(draws, smoothing=smoothing, **sizes)
    bound = sufficient_dimension(0.0, query_dim=query_dim, smoothing=smoothing, **sizes)
    return {**{name: float(np.quantile(found, share)) for name, share in SHARES.items()}, BOUND: bound}
