"""Digests: the formula, the same on every mesh, and no change that they overlook."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxzoo.train.digest import digests

M = 2**32


def sum_of(array) -> int:
    (digest,) = digests({"x": jnp.asarray(array)}).values()
    return digest.sum


def by_hand(words: list[int]) -> int:
    """The formula of the module's docstring, in Python's own integers."""
    total = 0
    for i, b in enumerate(words):
        x = (b ^ i * 0x9E3779B1 % M) * 0xC2B2AE35 % M
        x = (x ^ x >> 15) * 0x85EBCA6B % M
        total += x ^ x >> 15
    return total % M


@pytest.mark.parametrize(
    "shape", [(2, 3, 4), *(pytest.param(s, marks=pytest.mark.full) for s in ((), (7,), (3, 5), (0, 3)))]
)
def test_the_formula(shape):
    """Kills: another index order, a mix that loses bits, a sum that is not modulo 2^32."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert sum_of(x) == by_hand(x.reshape(-1).view(np.uint32).tolist())


DTYPES = ("bool", "int8", "uint8", "bfloat16", "float16", "int32", "uint32", "float32", "int64", "float64", "complex64")


@pytest.mark.parametrize(
    "dtype", [n if n in ("bfloat16", "float32") else pytest.param(n, marks=pytest.mark.full) for n in DTYPES]
)
def test_every_single_bit_counts(dtype):
    """Kills: bits that a conversion loses (NaN payloads, the sign of zero, the upper half of 64 bits)."""
    with jax.enable_x64(jnp.dtype(dtype).itemsize == 8):
        size = jnp.dtype(dtype).itemsize
        data = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, 6 * size).astype(np.uint8)
        if jnp.issubdtype(dtype, jnp.floating):
            data[: 2 * size] = 255  # NaN
        seen = [sum_of(data.view(jnp.dtype(dtype)))]
        for byte in range(6 * size):
            for bit in range(1 if dtype == "bool" else 8):
                flipped = data.copy()
                flipped[byte] ^= 1 << bit
                seen.append(sum_of(flipped.view(jnp.dtype(dtype))))
    assert seen[0] not in seen[1:]


def test_changes_of_several_words():
    """Kills: sums that know no place, and linear ones, in which two flipped signs cancel."""
    x = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    changed = [x[::-1], x[:, ::-1], np.roll(x, 1), x.reshape(50, 4).T]
    for i in range(199):
        signs, swap = x.copy().reshape(-1), x.copy().reshape(-1)
        signs[[i, i + 1]] *= -1
        swap[[i, i + 1]] = swap[[i + 1, i]]
        changed += [signs.reshape(x.shape), swap.reshape(x.shape)]
    assert sum_of(x) not in [sum_of(np.ascontiguousarray(y)) for y in changed]


def test_path_shape_and_dtype_belong_to_it():
    """Kills: two arrays that change places, zeros of another shape or type."""
    a, b = jnp.zeros((2, 3)), jnp.ones((2, 3))
    assert digests({"a": a, "b": {"c": b}}).keys() == {"a", "b/c"}
    assert digests({"a": a, "b": b}) != digests({"a": b, "b": a})
    assert len({str(digests({"a": z})) for z in (a, a.T, a.astype(jnp.int32))}) == 3


@pytest.mark.parametrize(
    "spec",
    [
        ("y", "x"),
        *(
            pytest.param(s, marks=pytest.mark.full)
            for s in (("x",), (None, "y"), (("x", "y"),), (None, ("x", "y")), ())
        ),
    ],
)
def test_the_same_on_every_mesh(spec):
    """Kills: shards counted twice or from a wrong beginning, sums that depend on their order."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 16)).astype(np.float32)
    laid_out = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    with jax.set_mesh(mesh):
        assert sum_of(laid_out) == by_hand(x.reshape(-1).view(np.uint32).tolist())
