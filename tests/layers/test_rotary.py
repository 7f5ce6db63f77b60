"""Rotary positions against complex rotations in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.rotary import rotary


def rotate_float64(x: np.ndarray, positions: np.ndarray, channels: int, base: float) -> np.ndarray:
    """Pairs (i, i + channels / 2) as complex numbers times exp(i p base^(-2 i / channels))."""
    x = x.astype(np.float64)
    frequency = base ** (-2.0 * np.arange(channels // 2) / channels)
    turn = np.exp(1j * positions[:, :, None, None] * frequency)
    pairs = (x[..., : channels // 2] + 1j * x[..., channels // 2 : channels]) * turn
    return np.concatenate([pairs.real, pairs.imag, x[..., channels:]], axis=-1)


CORE = [(0, 10, 7.0), (2**31 - 20, 4, 10000.0)]
ALL = [
    (start, *x) for start in (0, 100_000, 2**31 - 20) for x in ((10, 10000.0), (4, 10000.0), (10, 7.0), (0, 10000.0))
]


@pytest.mark.parametrize(
    ("start", "channels", "base"), [*CORE, *(pytest.param(*x, marks=pytest.mark.full) for x in ALL if x not in CORE)]
)
def test_rotary_matches_float64(start: int, channels: int, base: float) -> None:
    """Kills: float32 angles (4e-3 off at 100,000), interleaved pairs, wrong share, wrong base, mixed rows."""
    x = jax.random.normal(jax.random.key(0), (3, 7, 2, 10))
    positions = start + np.arange(7)[None, :] + np.array([0, 5, 11])[:, None]
    y = jax.jit(lambda *x: rotary(*x, channels=channels, base=base))(x, np.int32(positions))
    np.testing.assert_allclose(y, rotate_float64(np.asarray(x), positions, channels, base), atol=5e-6)
    np.testing.assert_array_equal(y[..., channels:], x[..., channels:])


@pytest.mark.full
def test_shared_positions_serve_all_rows() -> None:
    """Kills: a leading axis of 1 that reaches the first row only."""
    x = jax.random.normal(jax.random.key(1), (3, 5, 2, 6))
    shared = jnp.arange(5)[None, :]
    np.testing.assert_array_equal(rotary(x, shared), rotary(x, jnp.repeat(shared, 3, axis=0)))


def test_bfloat16_rotates_in_float32() -> None:
    """Kills: bfloat16 cosines; the only rounding is that of the result."""
    x = jax.random.normal(jax.random.key(2), (2, 9, 1, 8)).astype(jnp.bfloat16)
    positions = np.arange(9, dtype=np.int32)[None, :] + 300
    rotate = jax.jit(rotary)
    np.testing.assert_array_equal(rotate(x, positions), rotate(x.astype(jnp.float32), positions).astype(jnp.bfloat16))


@pytest.mark.parametrize("channels", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (8, -2))])
def test_impossible_channels_raise(channels: int) -> None:
    with pytest.raises(ValueError, match=rf"channels={channels} must be an even number in 0\.\.head_dim=6"):
        rotary(jnp.zeros((1, 1, 1, 6)), jnp.zeros((1, 1), jnp.int32), channels=channels)


def test_base_below_one_raises() -> None:
    with pytest.raises(ValueError, match=r"base=0\.5 must be at least 1"):
        rotary(jnp.zeros((1, 1, 1, 6)), jnp.zeros((1, 1), jnp.int32), base=0.5)
