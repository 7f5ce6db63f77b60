"""Liquid-S4 against its recurrence, and its kernels against the unrolled sums, in float64; every option."""

import itertools
import math

import numpy as np
import pytest

from jaxzoo.mixers.ssm.liquid_s4 import LiquidS4Config
from tests.mixers.moved import assert_computes, moved_mixer

D, T = 5, 13


def system(config, p):
    """a, b and c, complex128 `(d, n)`."""
    dt = np.exp(p["s4d.log_dt"])[:, None]
    a = -np.exp(p["s4d.log_neg_real"]) + 1j * p["s4d.imag"]
    b, c = (p[f"s4d.{name}"] @ np.array([1, 1j]) for name in ("b", "c"))
    if config.discretization == "zoh":
        return np.exp(dt * a), (np.exp(dt * a) - 1) / a * b, c
    return (1 + dt * a / 2) / (1 - dt * a / 2), dt * b / (1 - dt * a / 2), c


def by_recurrence(config, p, u):
    a, b, c = system(config, p)
    x, rows = np.zeros((u.shape[0], *a.shape), complex), []
    for i in range(u.shape[1]):
        written = b * u[:, i, :, None]
        x = (a + written) * x + written
        rows.append(2 * (c * x).sum(-1).real)
    return np.stack(rows, axis=1)


def by_kernel(config, p, u):
    """The sums of the table, term by term."""
    a, b, c = system(config, p)
    y = np.zeros_like(u)
    for i, order in itertools.product(range(u.shape[1]), range(1, config.order + 1)):
        for lag in range(i + 1):
            if i - lag - order + 1 < 0:
                continue
            if config.liquid == "pb" and order > 1 and lag > 0:
                continue
            product = u[:, i - lag - order + 1 : i - lag + 1].prod(axis=1)
            y[:, i] += 2 * (c * a**lag * b**order).sum(-1).real * product
    return y


def truth(config, p, u):
    """Outputs `(b, t, d)`: the state space model, skip, GELU and GLU."""
    y = (by_recurrence if config.liquid == "recurrence" else by_kernel)(config, p, u) + p["skip"] * u
    y = y * 0.5 * (1 + np.vectorize(math.erf)(y / np.sqrt(2)))
    y = y @ p["out_proj.kernel"] + p["out_proj.bias"]
    return y[..., :D] / (1 + np.exp(-y[..., D:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.full),
        {"discretization": "zoh", "spectrum": "inv"},
        {"liquid": "kb", "order": 3},
        {"liquid": "pb", "order": 4},
        pytest.param({"liquid": "kb", "order": 1}, marks=pytest.mark.full),
    ],
)
def test_equation(options):
    """Kills: a liquid term of the wrong power, of the token before, without u, or in one of a and b only; products that
    reach before the start; a gate for its values; an option that nothing reads."""
    config = LiquidS4Config(**{"d_model": D, "d_state": 6, "dt_min": 0.1, "dt_max": 1.0, **options})
    mixer, p = moved_mixer(config)
    u = 0.7 * np.random.default_rng(0).normal(size=(2, T, D))
    expected = truth(config, p, u)

    assert_computes(mixer, u, expected, 2e-5)
