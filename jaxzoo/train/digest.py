"""Digests of arrays that do not depend on how they are laid out: the same on every mesh and in every process.

The digest is a sum over the 32-bit words b of an array, each with its index i in the whole array, modulo 2^32:

    sum of mix(b xor i * 0x9E3779B1)        mix(x) = shift(0x85EBCA6B * shift(0xC2B2AE35 * x)), shift(x) = x xor x >> 15

The mix is one to one, so that a change within one word changes the sum, for certain; changes of several words are
overlooked with a probability of about 2^-32. Sums of integers are exact in any order, so each device adds up its own
shards and nothing is sent but the sums.

Cost: one pass over the data. For the state of 20M parameters under Adam (60M words, 240 MB) it takes 13 to 20 ms on two
CPU cores, 1.9 % of its save (0.7 to 1.0 s); the first time it also compiles, some 0.2 s for each shape of array.
"""

import functools
import hashlib
import json
import math
import operator
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jaxzoo.array_typing import Array, Int

Digests = dict[str, dict[str, Any]]
"""By the path of each array, such as `params/embedding`: `{"shape": [8, 4], "dtype": "float32", "sum": 79}`."""

_N_SLICES = 16
_MIN_SLICED = 1 << 16
"""Words from which on an array is cut into slices."""


def digests(tree: Any) -> Digests:
    """The digests of all arrays of a tree; waits until they are computed. Every process must call it."""
    named = [(jax.tree_util.keystr(path, simple=True, separator="/"), x) for path, x in jax.tree.leaves_with_path(tree)]
    sums = jax.device_get([_sum_of_array(x, x.sharding) for _, x in named])
    return {
        name: {"shape": list(x.shape), "dtype": str(x.dtype), "sum": int(value)}
        for (name, x), value in zip(named, sums, strict=True)
    }


def joint_digest(of: Digests, parts: Collection[str]) -> str:
    """One digest of all arrays of the parts of a state, such as `params`: SHA-256 of their names, shapes and sums."""
    chosen = {name: array for name, array in of.items() if name.split("/")[0] in parts}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()


@functools.partial(jax.jit, static_argnums=1)
def _sum_of_array(array: Array, sharding: Sharding) -> Int[Array, ""]:
    """The sum of an array; on a mesh each device adds up its own shard."""
    if not isinstance(sharding, NamedSharding):
        return _sum_of_shard(array, [jnp.uint32(0)] * array.ndim, array.shape)
    carriers = [(*((axes,) if isinstance(axes, str) else axes or ()),) for axes in sharding.spec]
    used = tuple(axis for axes in carriers for axis in axes)

    def of_shard(shard: Array) -> Array:
        places = [jax.lax.axis_index(axes).astype(jnp.uint32) if axes else jnp.uint32(0) for axes in carriers]
        places += [jnp.uint32(0)] * (array.ndim - len(places))
        start = [place * jnp.uint32(size) for place, size in zip(places, shard.shape, strict=True)]
        total = _sum_of_shard(shard, start, array.shape)
        return jax.lax.psum(total, used) if used else total

    whole = PartitionSpec()
    mapped = jax.shard_map(of_shard, mesh=sharding.mesh, in_specs=sharding.spec, out_specs=whole, check_vma=False)
    return mapped(array)


def _sum_of_shard(shard: Array, start: Sequence[Array], shape: tuple[int, ...]) -> Int[Array, ""]:
    """The sum over a shard that begins at `start` in an array of this shape."""
    inner = shard.dtype.itemsize // 4 if shard.dtype.itemsize > 4 else 1
    strides = [math.prod(shape[axis + 1 :]) * inner for axis in range(len(shape))]
    offset = sum((s * jnp.uint32(stride % 2**32) for s, stride in zip(start, strides, strict=True)), jnp.uint32(0))
    if shard.size < _MIN_SLICED:
        return _sum_words(_mixed(shard, offset, strides))
    axis = int(np.argmax(shard.shape))
    # Only slices are summed element by element without a copy of the whole array: XLA's CPU compiler fuses no integer
    # reduction with what goes before it.
    width, stride = max(1, shard.shape[axis] // _N_SLICES), strides[axis]
    cuts = [(k * width, (k + 1) * width) for k in range(shard.shape[axis] // width)]
    slices = [
        _mixed(jax.lax.slice_in_dim(shard, begin, end, axis=axis), offset + jnp.uint32(begin * stride % 2**32), strides)
        for begin, end in cuts
    ]
    total = _sum_words(functools.reduce(operator.add, slices))
    rest = cuts[-1][1]
    if rest == shard.shape[axis]:
        return total
    tail = jax.lax.slice_in_dim(shard, rest, shard.shape[axis], axis=axis)
    return total + _sum_words(_mixed(tail, offset + jnp.uint32(rest * stride % 2**32), strides))


def _sum_words(words: Int[Array, "..."]) -> Int[Array, ""]:
    return words.sum(dtype=jnp.uint32)


def _mixed(x: Array, offset: Int[Array, ""], strides: list[int]) -> Int[Array, "..."]:
    """The summands of the words of `x`, whose first word has index `offset` in the whole array."""
    bits = _words(x)
    index = jnp.broadcast_to(offset, bits.shape)
    for axis, stride in enumerate([*strides, 1][: bits.ndim]):
        index += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride % 2**32)
    mixed = bits ^ (index * jnp.uint32(0x9E3779B1))
    for factor in (0xC2B2AE35, 0x85EBCA6B):
        mixed *= jnp.uint32(factor)
        mixed ^= mixed >> jnp.uint32(15)
    return mixed


def _words(x: Array) -> Array:
    """The bits of `x` as uint32; of a type of 64 bits, two words along a new last axis."""
    if x.dtype == bool:
        return x.astype(jnp.uint32)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _words(jnp.stack([x.real, x.imag], axis=-1))
    narrow = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, narrow).astype(jnp.uint32)
