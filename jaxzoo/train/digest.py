"""Digests of arrays that do not depend on how they are laid out: the same on every mesh and in every process.

The digest is a sum over the 32-bit words b of an array, each with its index i in the whole array, modulo 2^32:

    sum of mix(b xor i * 0x9E3779B1)        mix(x) = shift(0x85EBCA6B * shift(0xC2B2AE35 * x)), shift(x) = x xor x >> 15

The mix is one to one, so that a change within one word always changes the sum; a change of several words is overlooked
with a probability of about 2^-32. Sums of integers are exact in any order: each device adds up its own shard.

Cost: one pass over the data and, on a CPU, a temporary array of the same size. The state of 20M parameters under Adam
(60M words, 240 MB) takes 0.08 s of CPU time; the first call also compiles, 0.3 s for two shapes of array.
"""

import hashlib
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxzoo.models.blueprint import Variables, names_of
from jaxzoo.utils.array_typing import Array, Int


class ArrayDigest(NamedTuple):
    """Digest of one array."""

    shape: tuple[int, ...]
    dtype: str
    sum: int


Digests = dict[str, ArrayDigest]
"""By the path of each array, such as `params/embedding`."""


def digests(tree: Any) -> Digests:
    """Computes the digests of all arrays of a tree. Every process must call it."""
    arrays = names_of(tree)
    sums = jax.device_get([_sum(x) for x in arrays.values()])
    pairs = zip(arrays.items(), sums, strict=True)
    return {name: ArrayDigest(x.shape, str(x.dtype), int(value)) for (name, x), value in pairs}


def variables_digest(variables: Variables) -> str:
    """One digest of all variables of a model: SHA-256 of the names, shapes, dtypes and sums of their arrays."""
    found = digests({name: tree for name, tree in variables._asdict().items() if tree})
    text = json.dumps({name: array._asdict() for name, array in found.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@jax.jit
def _sum(array: Array) -> Int[Array, ""]:
    words = _words(array)
    index, stride = jnp.zeros_like(words), 0x9E3779B1
    for axis in reversed(range(words.ndim)):
        index += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= words.shape[axis]
    mixed = words ^ index
    for factor in (0xC2B2AE35, 0x85EBCA6B):
        mixed *= jnp.uint32(factor)
        mixed ^= mixed >> jnp.uint32(15)
    return mixed.sum(dtype=jnp.uint32)


def _words(x: Array) -> Array:
    """The bits of `x` as uint32; of a type of 64 bits, two words along a new last axis."""
    if x.dtype == bool:
        return x.astype(jnp.uint32)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _words(jnp.stack([x.real, x.imag], axis=-1))
    narrow = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, narrow).astype(jnp.uint32)
