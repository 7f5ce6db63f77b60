"""Feature maps of linear attention: `phi(q) . phi(k)` replaces `exp(q . k)`.

All maps act on the last axis and expect float32. `jaxzoo/mixers/linear/feature_map.py` lists their options and
parameters. The maps `exp` and `performer` grow exponentially. A factor of a query's features cancels in the normalised
output (except for eps), so `shifted=True` divides by the largest feature. A factor of the keys would have to be the
same for all keys, and a stream does not know later keys, so keys are not scaled. `exp` overflows at a key entry of 88.
Performer's key features are at most `exp(|w|^2 / 2)` for a row w of the projection, with `|w|^2` about the width: they
cannot overflow up to a width of about 100. Features of keys that are much longer than w vanish.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxzoo.utils.array_typing import Array, Float, Int, PRNGKeyArray


def pos_elu(x: Float[Array, "... k"]) -> Float[Array, "... k"]:
    """`ELU(x) + 1` (Katharopoulos et al. 2020, eq. 7): `x + 1` above 0, `exp(x)` below, without the cancellation of
    `(exp(x) - 1) + 1`."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


PLAIN_MAPS: Mapping[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "relu": jax.nn.relu,
    "pos_elu": pos_elu,
    "square": jnp.square,
}
"""Maps without options, with as many features as channels."""


def exp_features(x: Float[Array, "... k"], *, mirrored: bool, shifted: bool) -> Float[Array, "... f"]:
    """`exp(x)`; mirrored: `[exp(max(x, 0)), exp(max(-x, 0))]`; shifted: divided by the largest feature."""
    if mirrored:
        x = jax.nn.relu(jnp.concatenate([x, -x], axis=-1))
    return jnp.exp(_shift(x) if shifted else x)


def softmax_features(x: Float[Array, "... k"], *, mirrored: bool) -> Float[Array, "... f"]:
    """Softmax over the channels of a token; mirrored: `[softmax(x), softmax(-x)]`."""
    if mirrored:
        return jnp.concatenate([jax.nn.softmax(x), jax.nn.softmax(-x)], axis=-1)
    return jax.nn.softmax(x)


def hedgehog_features(x: Float[Array, "... k"]) -> Float[Array, "... f"]:
    """`[softmax(x), softmax(-x)]` of `x = q W` or `k W` with W learned (Hedgehog, Zhang et al. 2024, arXiv 2402.04347).

    Hedgehog's equation is `[exp(x), exp(-x)]`; the softmax over channels, as in LoLCATs (arXiv 2410.10254), cannot
    overflow.
    """
    return softmax_features(x, mirrored=True)


def taylor_features(x: Float[Array, "... k"], *, full: bool) -> Float[Array, "... f"]:
    """`phi(q) . phi(k) = 1 + s + s^2 / 2` with `s = q . k / sqrt(k)` (Based, eqs. 2-4, scaled as released).

    `full` uses all k^2 products x_a x_b, 1 + k + k^2 features, like the released code; otherwise x_a x_b and x_b x_a
    are one feature: 1 + k + k (k + 1) / 2. The weights differ only in rounding.
    """
    width = x.shape[-1]
    products = _all_products(x) if full else _distinct_products(x)
    root = np.float32(width**-0.25)
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x * root, products * (root**2 * np.float32(0.5**0.5))], axis=-1)


def rebased_features(x: Float[Array, "... k"]) -> Float[Array, "... f"]:
    """`phi(q) . phi(k) = (q . k)^2 / k` (Aksenov et al. 2024): only the squares of the Taylor map, doubled."""
    return _distinct_products(x) * np.float32(x.shape[-1] ** -0.5)


def all_poly_features(
    x: Float[Array, "... k"], square_of_sum: Float[Array, "k f"], sum_of_squares: Float[Array, "k f"]
) -> Float[Array, "... f"]:
    """`((x W1)^2 + x^2 W2) / sqrt(2)`, squares entry by entry: f quadratic forms (the Zoology release's AllPolyMap)."""
    project = lambda x, w: jnp.einsum("...k,kf->...f", x, w, precision=lax.Precision.HIGHEST)  # noqa: E731
    forms = jnp.square(project(x, square_of_sum)) + project(jnp.square(x), sum_of_squares)
    return forms * np.float32(0.5**0.5)


def cosformer_features(
    x: Float[Array, "b t h k"], position: Int[Array, "#b t"], *, n_positions: int
) -> Float[Array, "b t h f"]:
    """`[relu(x) cos a, relu(x) sin a]` with `a = pi position / (2 n_positions)` (Qin et al. 2022, sec. 3).

    The weight of two tokens is `relu(q) . relu(k) cos(pi (i - j) / (2 n_positions))`: it depends on their distance
    only, and can be negative from a distance of `n_positions` on.
    """
    # A full turn is 4 n_positions tokens; the int32 remainder is exact at any position.
    turn = (position % (4 * n_positions)).astype(jnp.float32) * np.float32(np.pi / (2 * n_positions))
    x, angle = jax.nn.relu(x), turn[:, :, None, None]
    return jnp.concatenate([x * jnp.cos(angle), x * jnp.sin(angle)], axis=-1)


def performer_features(
    x: Float[Array, "... k"], projection: Float[Array, "f k"], *, shifted: bool
) -> Float[Array, "... f"]:
    """`exp(W x' - |x'|^2 / 2) / sqrt(f)` with `x' = x / k^(1/4)`: FAVOR+ (Choromanski et al. 2021, lemma 1).

    The expected product of two such vectors over random W is `exp(q . k / sqrt(k))`.

    Args:
      x: queries or keys, float32.
      projection: W, see `orthogonal_gaussian`.
      shifted: divides the features of each token by the largest.
    """
    exponent = performer_exponent(x, projection)
    return jnp.exp(_shift(exponent) if shifted else exponent) * np.float32(projection.shape[0] ** -0.5)


def performer_exponent(x: Float[Array, "... k"], projection: Float[Array, "f k"]) -> Float[Array, "... f"]:
    """`W x' - |x'|^2 / 2`: logarithms of `performer_features`, unshifted, up to the common factor."""
    x = x * np.float32(projection.shape[1] ** -0.25)
    # Full precision: an error of the exponent is a relative error of the feature.
    exponent = jnp.einsum("...k,fk->...f", x, projection, precision=lax.Precision.HIGHEST)
    return exponent - jnp.square(x).sum(-1, keepdims=True) / 2


def orthogonal_gaussian(key: PRNGKeyArray, n_features: int, width: int) -> Float[Array, "f k"]:
    """Rows distributed as N(0, I), orthogonal within blocks of `width` rows (Choromanski et al. 2021, the O in
    FAVOR+)."""
    direction_key, norm_key = jax.random.split(key)
    blocks = jax.random.orthogonal(direction_key, width, (-(-n_features // width),))
    rows = blocks.reshape(-1, width)[:n_features]
    return rows * jnp.linalg.norm(jax.random.normal(norm_key, rows.shape), axis=-1, keepdims=True)


def _all_products(x: jax.Array) -> jax.Array:
    """`x_a x_b` for all a and b, row-major: (..., k) -> (..., k^2)."""
    return (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], x.shape[-1] ** 2)


def _distinct_products(x: jax.Array) -> jax.Array:
    """`x_a x_b` for a <= b, times sqrt 2 if a < b: the same scalar products as `_all_products`."""
    first, second = np.triu_indices(x.shape[-1])
    weights = np.where(first == second, 1, 2**0.5).astype(np.float32)
    return x[..., first] * x[..., second] * weights.reshape((1,) * (x.ndim - 1) + (-1,))


def _shift(exponent: jax.Array) -> jax.Array:
    """Exponents minus their largest, which has no gradient because it cancels in the output."""
    return exponent - lax.stop_gradient(exponent.max(-1, keepdims=True))
