"""Scaled rotary frequencies, each against its published formula, written out pair by pair."""

import math

import jax
import numpy as np
import pytest

from jaxzoo.layers.rotary import rotary
from jaxzoo.layers.rotary_scaling import NO_SCALING, RotaryScaling
from tests.mixers.refused import assert_refused

N, BASE = 64, 10000.0


def trained():
    return [BASE ** (-2 * i / N) for i in range(N // 2)]


def test_linear_interpolation():
    """Kills a factor that speeds up: position p turns as p / 4 did."""
    scaling = RotaryScaling(kind="linear", factor=4.0)
    x = np.random.default_rng(0).normal(size=(1, 3, 2, N)).astype(np.float32)
    rotate = jax.jit(rotary, static_argnames=("scaling", "channels", "interleaved"))
    far = rotate(x, np.int32([[0, 400, 4000]]), scaling=scaling)
    near = rotate(x, np.int32([[0, 100, 1000]]))
    np.testing.assert_allclose(far, near, rtol=0, atol=2e-6)


def test_yarn_as_printed():
    """Kills a ramp in the channel, one that is turned around, and the wrong of the two frequencies at its ends:
    Peng et al., eqs. 17 to 20."""
    scaling = RotaryScaling(kind="yarn", factor=8.0, original_length=2048, ramp="rotations")
    expected, kept = [], []
    for theta in trained():
        turns = 2048 / (2 * math.pi / theta)
        gamma = 0.0 if turns < 1 else 1.0 if turns > 32 else (turns - 1) / 31
        expected.append((1 - gamma) * theta / 8 + gamma * theta)
        kept.append(gamma)
    assert 0 in kept
    assert 1 in kept
    assert any(0 < gamma < 1 for gamma in kept)
    np.testing.assert_allclose(scaling.frequencies(N, BASE), expected, rtol=1e-12)


@pytest.mark.parametrize("ramp", ["channels", "unrounded_channels"])
def test_yarn_as_released(ramp):
    """Kills ends that are not rounded outwards, or rounded against the option, or counted in channels instead of
    pairs."""
    scaling = RotaryScaling(kind="yarn", factor=8.0, original_length=2048, ramp=ramp)

    def pair_that_turns(times):
        return N * math.log(2048 / (times * 2 * math.pi)) / (2 * math.log(BASE))

    low, high = pair_that_turns(32), pair_that_turns(1)
    if ramp == "channels":
        low, high = math.floor(low), math.ceil(high)
    assert 0 < low < high < N // 2
    expected = []
    for i, theta in enumerate(trained()):
        slowed = min(max((i - low) / (high - low), 0), 1)
        expected.append(theta / 8 * slowed + theta * (1 - slowed))
    np.testing.assert_allclose(scaling.frequencies(N, BASE), expected, rtol=1e-12)
    assert np.abs(scaling.frequencies(N, BASE) / expected - 1).max() < 1e-12


def test_llama3():
    """Kills wavelengths that are compared with the new length, and a transition from the wrong end."""
    scaling = RotaryScaling.llama3()
    expected = []
    for theta in trained():
        wavelength = 2 * math.pi / theta
        if wavelength < 8192 / 4:
            expected.append(theta)
        elif wavelength > 8192 / 1:
            expected.append(theta / 8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected.append((1 - smooth) * theta / 8 + smooth * theta)
    np.testing.assert_allclose(scaling.frequencies(N, BASE), expected, rtol=1e-12)


def test_temperature_scales_the_rotated_channels_alone():
    """Kills a temperature on channels that pass through, on scores of other kinds, and a given one that is ignored."""
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 10)).astype(np.float32)
    positions = np.arange(5, dtype=np.int32)[None]
    rotate = jax.jit(rotary, static_argnames=("scaling", "channels", "interleaved"))
    for temperature, expected in ((None, 0.1 * math.log(4) + 1), (1.3, 1.3)):
        scaling = RotaryScaling(kind="yarn", factor=4.0, temperature=temperature)
        assert scaling.amplitude == pytest.approx(expected)
        y = np.asarray(rotate(x, positions, channels=6, scaling=scaling))
        norms = [np.linalg.norm(z[..., :6], axis=-1) for z in (y, x)]
        np.testing.assert_allclose(norms[0], expected * norms[1], rtol=1e-5)
        np.testing.assert_array_equal(y[..., 6:], x[..., 6:])
    assert RotaryScaling(kind="linear", factor=4.0).amplitude == NO_SCALING.amplitude == 1


def test_interleaved_pairs_are_neighbours():
    """Kills pairs of the other convention, and a result in another order: by complex numbers in float64."""
    x = np.random.default_rng(0).normal(size=(2, 7, 3, 10)).astype(np.float32)
    positions = 100 + np.arange(7)
    turn = np.exp(1j * positions[:, None, None] * 10000.0 ** (-np.arange(4) / 4))
    rotating = np.asarray(x[..., :8], np.float64)
    expected = (rotating[..., 0::2] + 1j * rotating[..., 1::2]) * turn
    rotate = jax.jit(lambda *x: rotary(*x, channels=8, interleaved=True))
    y = np.asarray(rotate(x, np.int32(positions)[None]))
    np.testing.assert_allclose(y[..., 0:8:2], expected.real, rtol=0, atol=5e-6)
    np.testing.assert_allclose(y[..., 1:8:2], expected.imag, rtol=0, atol=5e-6)
    np.testing.assert_array_equal(y[..., 8:], x[..., 8:])


def test_config_errors():
    """Kills a scaling that says nothing."""
    cases = [
        ({"factor": 0.5}, "factor=0.5 must be at least 1"),
        ({"beta_slow": 40.0}, "beta_fast=32.0 must be above beta_slow=40.0"),
        ({"kind": "ntk"}, "kind='ntk' must be one of 'none', 'linear', 'yarn', 'llama3'"),
        ({"original_length": 0}, "original_length=0 must be positive"),
    ]
    assert_refused(RotaryScaling, cases)
