"""A power law fitted to counts of distances (Zoology App. D, Figures 3 and 5)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

_STEEPEST = 50.0
"""Exponents are searched in [-50, 50]: beyond, all but one distance has a share below 1e-15."""


class PowerLaw(NamedTuple):
    """p(d) = d^-alpha / sum_{k=1}^{m} k^-alpha for d = 1 .. m."""

    alpha: float
    standard_error: float
    """Standard error of alpha if counts are independent; those of one text are not, and the true error is larger."""
    misfit: float
    """Largest difference between the cumulative shares of counts and law (Kolmogorov and Smirnov's distance)."""

    def shares(self, m: int) -> Float[np.ndarray, "m"]:
        """p(1) .. p(m)."""
        return _shares(self.alpha, np.log(np.arange(1, m + 1)))


def fit_power_law(counts: Integer[np.ndarray, "m"]) -> PowerLaw | None:
    """Fits the power law under which the counts of distances 1 .. m are most likely, distances truncated to 1 .. m.

    With N counts, mean log-distance L and Z(alpha) = sum_{k=1}^{m} k^-alpha the log-likelihood is
    -N (alpha L + log Z(alpha)). It is concave; at its top the law's own mean of log d is L, and its curvature, N times
    the law's variance of log d, gives the standard error 1 / sqrt(N Var[log d]).

    None if there are no counts, or one distance, the first or the last, has them all.
    """
    n, m = counts.sum(), len(counts)
    log_d = np.log(np.arange(1, m + 1))
    if n == 0 or n in (counts[0], counts[-1]):
        return None
    wanted = float(counts @ log_d / n)
    low, high = -_STEEPEST, _STEEPEST
    while high - low > 1e-10:
        alpha = (low + high) / 2
        if _shares(alpha, log_d) @ log_d > wanted:  # the law reaches too far
            low = alpha
        else:
            high = alpha
    alpha = (low + high) / 2
    shares = _shares(alpha, log_d)
    variance = shares @ (log_d - wanted) ** 2
    misfit = np.abs(np.cumsum(shares) - np.cumsum(counts) / n).max()
    return PowerLaw(alpha, float(1 / np.sqrt(n * variance)), float(misfit))


def _shares(alpha: float, log_d: Float[np.ndarray, "m"]) -> Float[np.ndarray, "m"]:
    exponents = -alpha * log_d
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()
