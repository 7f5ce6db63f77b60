"""Two sums with a common scale, as the kernels carry them, and the terms that they add.

Exponents are to the base 2, and the largest term of `den` is 1. One of the two factors of an addition is always 1, so
that it takes one exponential.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

LOG2_E = math.log2(math.e)


class Sums(NamedTuple):
    """`num` and `den` times 2^top, float32 arrays of channels: those of `state.py`, or the cotangents of the true sums,
    whose scale is the largest of the terms that they sum."""

    num: Any
    den: Any
    top: Any

    def with_term(self, exponent, num, den=None) -> "Sums":
        """With num and den, None: 1, times 2^exponent."""
        past, own = factors(self.top, exponent)
        den = own if den is None else own * den
        return Sums(past * self.num + own * num, past * self.den + den, jnp.maximum(self.top, exponent))


def factors(x, y):
    """2^x and 2^y over the larger of both."""
    difference = x - y
    small = jnp.exp2(jnp.minimum(difference, -difference))  # one instruction on a GPU; that of -|.| are two
    return jnp.where(x >= y, 1.0, small), jnp.where(x >= y, small, 1.0)


def before_token(sums: Sums, later: Sums, key, value, dy, *, u, w):
    """dk, dv, the cotangents before a token, and its terms of -dw and du.

    sums are those before the token, later the cotangents after it. `mosaic_gpu_vjp.py` has the equations.
    """
    own_exponent = key + u
    read = sums.with_term(own_exponent, value)
    inverse = 1.0 / read.den
    g, y = dy * inverse, read.num * inverse
    own = jnp.exp2(own_exponent - read.top) * g
    du = own * (value - y)
    weight = jnp.exp2(key + later.top)
    dk = du + weight * (later.num * value + later.den)
    dv = own + weight * later.num
    past = later.top - w
    dw = jnp.exp2(sums.top + past) * (later.num * sums.num + later.den * sums.den)
    return dk, dv, later._replace(top=past).with_term(-read.top, g, -g * y), (dw, du)
