"""Liquid-S4 against its recurrence, and its kernels against the unrolled sums, in float64; every option."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.base import state_bytes
from jaxzoo.mixers.ssm.liquid_s4 import LiquidS4, LiquidS4Config
from tests.mixers.moved import abstract_mixer, assert_computes, moved_mixer, quick_rngs
from tests.mixers.refused import assert_refused

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


@pytest.mark.slow
def test_the_kernels_are_parts_of_the_recurrence():
    """Kills a kb that weighs products otherwise than the unrolled recurrence does: where only tokens i and i + 1 are
    not zero, there are no other products, and both give the same; pb where, besides, the output is that of token i +
    1."""
    u = np.zeros((1, T, D))
    u[:, 4:6] = np.random.default_rng(0).normal(size=(1, 2, D))
    outputs = {}
    for liquid in ("recurrence", "kb", "pb"):
        config = LiquidS4Config(d_model=D, d_state=6, dt_min=0.1, dt_max=1.0, liquid=liquid)
        outputs[liquid] = np.asarray(moved_mixer(config)[0](jnp.asarray(u, jnp.float32)))
    np.testing.assert_allclose(outputs["kb"], outputs["recurrence"], rtol=0, atol=1e-5 * np.abs(outputs["kb"]).max())
    differences = np.abs(outputs["pb"] - outputs["recurrence"]).max(axis=(0, 2))
    assert differences[:6].max() < 1e-5 < 1e-3 < differences[6:].min()


@pytest.mark.slow
def test_a_long_sequence_is_finite():
    """Kills products of 16384 factors that overflow at the published initialisation, for inputs of a normalised layer,
    in values and gradients."""
    mixer = LiquidS4(LiquidS4Config(d_model=2, d_state=8), rngs=quick_rngs())
    u = jax.random.normal(jax.random.key(0), (1, 16384, 2))
    gradient = jax.jit(jax.grad(lambda u: jnp.square(mixer(u)).sum()))(u)
    assert np.isfinite(gradient).all()
    assert np.isfinite(jax.jit(mixer)(u.astype(jnp.bfloat16))).all()


@pytest.mark.full
def test_state_and_flops_by_hand():
    """Kills a state of real numbers only, or without the inputs of products: d = 6, 4 pairs a channel, order 3."""
    recurrence = LiquidS4Config(d_model=6, d_state=8)
    kb, pb = (LiquidS4Config(d_model=6, d_state=8, liquid=liquid, order=3) for liquid in ("kb", "pb"))
    assert state_bytes(abstract_mixer(recurrence)) == 4 * 6 * 4 * 2
    for config in (kb, pb):
        mixer = abstract_mixer(config)
        assert state_bytes(mixer, dtype=jnp.bfloat16) == 4 * 6 * 4 * 2 + 2 * 2 * 6
    assert recurrence.flops_per_token(100) == 4 * 36 + 16 * 6 * 4
    long = 200 * (5 * np.log2(200) + 3) / 100  # transforms of 200 points for 100 tokens
    assert kb.flops_per_token(100) == pytest.approx(4 * 36 + 3 * 6 * long)
    assert pb.flops_per_token(100) == pytest.approx(4 * 36 + 6 * long)


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"d_state": 7}, "d_state=7 must be even"),
        ({"order": 0}, "order=0 must be positive"),
        ({"dt_min": 0.2}, "dt_max=0.1 must be at least dt_min=0.2"),
        ({"liquid": "polyb"}, "liquid='polyb' must be one of 'recurrence', 'kb', 'pb'"),
    ]
    assert_refused(functools.partial(LiquidS4Config, d_model=12), cases)
