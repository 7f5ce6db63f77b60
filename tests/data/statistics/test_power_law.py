"""Power-law fits of samples with a known law. Kills: a wrong normalizer or standard error."""

import numpy as np

from jaxzoo.data.statistics.recall_summary import PowerLaw, fit_power_law

M = 2047


def draw(rng: np.random.Generator, n: int, shares: np.ndarray) -> np.ndarray:
    return np.bincount(rng.choice(len(shares), n, p=shares), minlength=len(shares))


def test_recovers_alpha_within_its_error():
    """Kills: a wrong normaliser, distances from 0, a standard error that is off by a factor: the 40 standardised errors
    have a mean square near 1 (its own standard deviation is 0.22)."""
    for alpha in [-0.5, 0.0, 0.8, 1.0, 1.7, 3.0]:
        weights = np.array([float(d) ** -alpha for d in range(1, M + 1)])
        rng = np.random.default_rng(0)
        errors = []
        for _ in range(40):
            law = fit_power_law(draw(rng, 3000, weights / weights.sum()))
            assert law is not None
            errors.append((law.alpha - alpha) / law.standard_error)
        assert 0.4 < np.mean(np.square(errors)) < 1.8
        assert abs(np.mean(errors)) < 0.5
        assert law.misfit < 0.04  # 1.6 / sqrt(3000) is the 99 % point of Kolmogorov and Smirnov


def test_is_the_most_likely():
    """Kills: a root of another equation: the likelihood, by its definition, is lower on both sides."""
    counts = np.random.default_rng(1).integers(0, 50, 30)

    def log_likelihood(alpha: float) -> float:
        shares = [d**-alpha / sum(k**-alpha for k in range(1, 31)) for d in range(1, 31)]
        return float(counts @ np.log(shares))

    law = fit_power_law(counts)
    assert law is not None
    assert log_likelihood(law.alpha) > max(log_likelihood(law.alpha - 1e-4), log_likelihood(law.alpha + 1e-4))


def test_shares_are_those_of_the_formula():
    expected = np.array([1, 2**-1.5, 3**-1.5])
    np.testing.assert_allclose(PowerLaw(1.5, 0.1, 0.0).shares(3), expected / expected.sum(), rtol=1e-12)
