"""LinCAT against its equation in float64: filters, then sums of products of features, token by token."""

import numpy as np
import pytest

from jaxzoo.mixers import LinCATConfig
from tests.mixers.moved import assert_computes, moved_mixer

D, T = 12, 9


def phi(config, x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) if config.feature_map == "pos_elu" else x**2


def truth(config, p, u):
    """Outputs `(t, d)` of one row."""
    h, heads = config.n_heads, []
    parts = {}
    for name, letter in (("queries", "q"), ("keys", "k"), ("values", "v")):
        inputs = (u @ p[f"{letter}_proj.kernel"]).reshape(len(u), h, -1)
        taps = p.get(f"head_filters.{name}")
        if taps is None:
            parts[name] = inputs
            continue
        y = np.zeros_like(inputs)
        for i in range(len(u)):
            for a in range(min(config.n_taps, i + 1)):
                matrix = taps[a] if config.filters == "mixing" else np.diag(taps[a])
                y[i] += matrix.T @ inputs[i - a]
        parts[name] = y
    for head in range(h):
        q, k, v = (parts[name][:, head] for name in ("queries", "keys", "values"))
        q, k = phi(config, q), phi(config, k)
        s, z, rows = np.zeros((q.shape[1], v.shape[1])), np.zeros(q.shape[1]), []
        for i in range(len(u)):
            s, z = s + np.outer(k[i], v[i]), z + k[i]
            rows.append(q[i] @ s / (q[i] @ z + config.eps if config.normalize else 1))
        heads.append(np.stack(rows))
    return np.concatenate(heads, axis=1) @ p["out_proj.kernel"]


@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "filter_keys": False, "filter_values": False, "normalize": False, "n_taps": 12},
        {"n_heads": 3, "n_taps": 4, "filter_queries": False, "head_dim": 2},
        {"n_heads": 2, "filters": "mixing", "n_taps": 2, "feature_map": "square", "eps": 0.5},
        pytest.param({}, marks=pytest.mark.slow),
    ],
)
def test_equation(options):
    """Kills: a filter after the feature map, of another part or turned around, a head that is not mixed, a part whose
    filter is lost, an option that nothing reads."""
    config = LinCATConfig(d_model=D, feature_dim=5, **options)
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = np.stack([truth(config, p, row) for row in x])

    assert_computes(mixer, x, expected, 2e-5)
