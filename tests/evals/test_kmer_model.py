"""The k-mer baseline. Kills: k-mers in another order."""

import numpy as np
import pytest

from jaxzoo.evals.kmer_model import kmer_features, predict, wilson_interval


@pytest.mark.full
def test_features_and_fit():
    """Kills: k-mers in another order or across N, a fit that has not converged, features scaled by the test set."""
    np.testing.assert_allclose(kmer_features(["AACNT"], 2)[0, [0, 1]], [8, 8])
    assert kmer_features(["AACNT"], 2).sum() == 16
    assert kmer_features(["A"], 2).sum() == 0
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    texts = ["".join(rng.choice(list("ACGT"), 80, p=np.roll([0.4, 0.2, 0.2, 0.2], label))) for label in labels]
    features = kmer_features(texts, 2)
    found = predict(features[:400], labels[:400], features[400:] * 1.0, n_classes=3)
    assert np.mean(found == labels[400:]) > 0.85
    shuffled = predict(features[:400], rng.permutation(labels[:400]), features[400:], n_classes=3)
    assert np.mean(shuffled == labels[400:]) < 0.5


def test_interval():
    """Wilson's interval of 8 in 10 and of 0 in 10, from tables."""
    np.testing.assert_allclose(wilson_interval(8, 10), (0.4902, 0.9433), atol=1e-4)
    np.testing.assert_allclose(wilson_interval(0, 10), (0.0, 0.2775), atol=1e-4)
