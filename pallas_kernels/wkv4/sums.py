"""Two sums with a common scale, carried by the kernels.

Exponents are in base 2, and the largest term of `den` is 1: an addition takes one exponential.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

LOG2_E = math.log2(math.e)


class Sums(NamedTuple):
    """`num` and `den` times 2^top, float32 arrays of channels: the sums of `state.py` or their cotangents, scaled by
    the largest term."""

    num: Any
    den: Any
    top: Any

    def with_term(self, exponent, num, den=None) -> "Sums":
        """Adds num and den (None: 1) times 2^exponent."""
        past, own = factors(self.top, exponent)
        den = own if den is None else own * den
        return Sums(past * self.num + own * num, past * self.den + den, jnp.maximum(self.top, exponent))


def factors(x, y):
    """2^x and 2^y, divided by the larger one."""
    difference = x - y
    small = jnp.exp2(jnp.minimum(difference, -difference))  # one instruction on a GPU; -|.| takes two
    return jnp.where(x >= y, 1.0, small), jnp.where(x >= y, small, 1.0)


def before_token(sums: Sums, later: Sums, key, value, dy, *, u, w):
    """dk, dv, the cotangents before a token, and its terms of -dw and du.

    sums: sums before the token; later: cotangents after it. `mosaic_gpu_vjp.py` has the equations.
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
