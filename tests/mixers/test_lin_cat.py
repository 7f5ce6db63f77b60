"""LinCAT against its equation in float64: filters, then sums of products of features, token by token."""

import functools

import numpy as np
import pytest

from jaxzoo.mixers import LinCATConfig, state_bytes
from tests.mixers.moved import abstract_mixer, assert_computes, moved_mixer
from tests.mixers.refused import assert_refused

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


def test_state_and_flops_by_hand():
    """Kills histories of what has no filter, or of another width. d = 12, 3 heads, 5 features, values of 4, 2 of 3
    parts filtered by 4 taps, chunks of 64."""
    config = LinCATConfig(d_model=12, n_heads=3, feature_dim=5, n_taps=4, filter_keys=False)
    mixer = abstract_mixer(config)
    assert state_bytes(mixer) == 4 * (3 * 5 * 4 + 3 * 5 + 1 + 3 * 3 * 5 + 3 * 3 * 4)
    assert config.flops_per_token(64) == 2 * 12 * 3 * 18 + 2 * 4 * 3 * 9 + 2 * 3 * 64 * 9
    mixing = LinCATConfig(d_model=12, n_heads=3, feature_dim=5, n_taps=4, filter_keys=False, filters="mixing")
    assert mixing.flops_per_token(64) - config.flops_per_token(64) == 2 * 4 * 9 * (9 - 3)


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"n_heads": 5}, "d_model=12 must be divisible by n_heads=5"),
        ({"n_taps": 0}, "n_taps=0 must be positive"),
        ({"filters": "maps"}, "filters='maps' must be one of 'head', 'mixing'"),
        ({"n_features": 3}, "n_features=3 is read by feature_map='performer'"),
    ]
    assert_refused(functools.partial(LinCATConfig, d_model=12), cases)
