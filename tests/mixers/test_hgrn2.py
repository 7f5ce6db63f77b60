"""HGRN2 against its recurrence in float64, head by head; its lower bounds; its errors."""

import numpy as np
import pytest

from jaxzoo.mixers.linear.hgrn2 import HGRN2, HGRN2Config
from tests.mixers.moved import moved, quick_rngs
from tests.mixers.recurrent_truth import T, check, inputs, rms, sigmoid, silu

D = 8


def truth(config, p, x):
    bound = config.layer_index / config.n_layers
    q, f, v = (x @ p[f"{name}_proj.kernel"] for name in "qfi")
    q, f = silu(q), bound + (1 - bound) * sigmoid(f)
    k_dim, v_dim, heads = config.keys // config.n_heads, D // config.n_heads, []
    for h in range(config.n_heads):
        own, of_values = slice(h * k_dim, (h + 1) * k_dim), slice(h * v_dim, (h + 1) * v_dim)
        s, rows = np.zeros((2, k_dim, v_dim)), []
        for i in range(T):
            s = f[:, i, own, None] * s + (1 - f[:, i, own, None]) * v[:, i, None, of_values]
            rows.append(np.einsum("bk,bkv->bv", q[:, i, own], s) / (np.sqrt(k_dim) if config.scaled else 1))
        heads.append(np.stack(rows, axis=1))
    return (rms(np.concatenate(heads, axis=-1), config.norm_eps) * p["norm.scale"]) @ p["out_proj.kernel"]


@pytest.mark.parametrize(
    "options",
    [
        {"key_width": 6, "layer_index": 2, "n_layers": 5, "scaled": True, "norm_eps": 0.1},
        pytest.param({}, marks=pytest.mark.full),
    ],
)
def test_equation(options):
    """Kills: keys that do not follow the decay, a bound of another layer, a norm per head, a logarithm of 0 in the
    first layer; in parallel, and streamed."""
    config = HGRN2Config(d_model=D, n_heads=2, **options)
    mixer, p = moved_but_bounds(HGRN2(config, rngs=quick_rngs()))
    x = inputs(D)
    check(mixer, truth(config, p, x), x)


def moved_but_bounds(mixer):
    bound = mixer.lower_bound[...]
    mixer, p = moved(mixer)
    mixer.lower_bound[...] = bound
    return mixer, p
