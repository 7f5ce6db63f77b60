"""`QUICK_PRNG`: random numbers for the small arrays of tests, in programs that compile quickly.

    key = jax.random.key(0, impl=QUICK_PRNG)

A key is one 32-bit integer; random bits are hashes of the key and an index, a few operations that XLA fuses. JAX's own
generators compile to several dozen kernels for one small mixer and take twice as long. The quality suffices to make
parameters differ; do not train with it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl


def mixed(x: jax.Array) -> jax.Array:
    """Hashes 32-bit integers."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def counted(key: jax.Array, shape: tuple[int, ...], first: int) -> jax.Array:
    """Hashes of the key and of the index of each element, counted from `first`."""
    places = jnp.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
    return mixed(mixed(places + np.uint32(first)) ^ key[0])


QUICK_PRNG = define_prng_impl(
    key_shape=(1,),
    seed=lambda seed: jnp.asarray(seed, np.uint32)[None],
    split=lambda key, shape: counted(key, shape, 1 << 30)[..., None],
    random_bits=lambda key, bit_width, shape: counted(key, shape, 1).astype(f"uint{bit_width}"),
    fold_in=lambda key, data: mixed(key ^ mixed(jnp.asarray(data, np.uint32) + np.uint32(1 << 31))),
    name="quick",
    tag="quick",
)
"""Generator for `jax.random.key(seed, impl=QUICK_PRNG)`, of at most 32 bits per number."""
