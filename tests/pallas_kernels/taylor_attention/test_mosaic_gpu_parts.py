"""float32 in parts of bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.hopper import parts as parts_of


def numbers():
    return np.random.default_rng(0).standard_normal((1, 64, 3, 16)).astype(np.float32)


def test_the_second_part_holds_what_the_first_leaves():
    """Kills a second part that is zero, as XLA makes it of a conversion there and back, parts that are not side by side
    by heads, and a first part that is cut off instead of rounded."""
    x = numbers()
    parts = np.asarray(jax.jit(lambda x: parts_of.operand(x, 2))(x), np.float64).reshape(1, 64, 2, 3, 16)
    first, second = parts[:, :, 0], parts[:, :, 1]
    assert np.all(np.abs(x - first) <= 2.0**-8 * np.abs(x))
    assert np.all(np.abs(x - first - second) <= 2.0**-16 * np.abs(x))
    assert np.abs(second).max() > 0


@pytest.mark.full
def test_registers_are_split_as_operands_are():
    """Kills another order of parts than that of the tiles in shared memory."""
    x = jnp.asarray(numbers())
    with jax.disable_jit():  # as a device would: XLA on a CPU may fuse the conversions
        first, second = parts_of.split(x, 2)
    np.testing.assert_array_equal(jnp.concatenate([first, second], 2), parts_of.operand(x, 2))


@pytest.mark.full
def test_bfloat16_is_its_only_part():
    """Kills a copy of what is there, and a second part."""
    x = jnp.asarray(numbers(), jnp.bfloat16)
    assert parts_of.operand(x, 1) is x
    (only,) = parts_of.split(x, 1)
    np.testing.assert_array_equal(only, x)
