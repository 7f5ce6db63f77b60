"""Feature maps of linear attention: phi of queries and keys, with `phi(q) . phi(k)` in the place of `exp(q . k)`.

All act on the last axis, for any axes before it, and expect float32. Two of them, `exp` and `performer`, grow
exponentially. Of a query any factor may be taken out, since it cancels in the normalised output (but for eps), and
`shifted=True` takes out the largest feature. Of a key none may be taken out: it would have to be the same for all keys,
and a stream does not know the keys to come. So keys stay as they are. `exp` overflows at a key entry of 88. Performer's
key features are at most `exp(|w|^2 / 2)` for a row w of the projection, where `|w|^2` is about the width: up to a width
of about 100 they cannot overflow. Features of keys that are much longer than w vanish.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxzoo.array_typing import Array, Float, Int, PRNGKeyArray


def pos_elu(x: Float[Array, "... k"]) -> Float[Array, "... k"]:
    """`ELU(x) + 1` (Katharopoulos et al. 2020, eq. 7): `x + 1` above 0, `exp(x)` below, without the cancellation of
    `(exp(x) - 1) + 1`."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


PLAIN_MAPS: Mapping[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "relu": jax.nn.relu,
    "pos_elu": pos_elu,
    "square": jnp.square,
    "softmax": jax.nn.softmax,
}
"""Maps without options, of as many features as channels. `softmax` is over the channels of one token."""


def exp_features(x: Float[Array, "... k"], *, shifted: bool) -> Float[Array, "... k"]:
    """`exp(x)`; `shifted`: over the largest feature, which then is 1."""
    return jnp.exp(_shift(x) if shifted else x)


def cosformer_features(
    x: Float[Array, "b t h k"], position: Int[Array, "#b t"], *, n_positions: int
) -> Float[Array, "b t h f"]:
    """`[relu(x) cos a, relu(x) sin a]` with `a = pi position / (2 n_positions)` (Qin et al. 2022, sec. 3).

    Two tokens then weigh `relu(q) . relu(k) cos(pi (i - j) / (2 n_positions))`: the distance counts, not where counting
    begins. From a distance of `n_positions` on, weights are no longer positive.
    """
    # A whole turn is 4 n_positions tokens; in int32 the rest of the division is exact, however far the token.
    turn = (position % (4 * n_positions)).astype(jnp.float32) * np.float32(np.pi / (2 * n_positions))
    x, angle = jax.nn.relu(x), turn[:, :, None, None]
    return jnp.concatenate([x * jnp.cos(angle), x * jnp.sin(angle)], axis=-1)


def performer_features(
    x: Float[Array, "... k"], projection: Float[Array, "f k"], *, shifted: bool
) -> Float[Array, "... f"]:
    """`exp(W x' - |x'|^2 / 2) / sqrt(f)` with `x' = x / k^(1/4)`: FAVOR+ (Choromanski et al. 2021, lemma 1).

    Over random W the product of two such vectors has the mean `exp(q . k / sqrt(k))`.

    Args:
      x: queries or keys, float32.
      projection: W, of `orthogonal_gaussian`.
      shifted: takes the largest feature out of each token.
    """
    n_features, width = projection.shape
    x = x * np.float32(width**-0.25)
    # In full precision: an error of the exponent is a relative error of the feature.
    exponent = jnp.einsum("...k,fk->...f", x, projection, precision=lax.Precision.HIGHEST)
    exponent = exponent - jnp.square(x).sum(-1, keepdims=True) / 2
    return jnp.exp(_shift(exponent) if shifted else exponent) * np.float32(n_features**-0.5)


def orthogonal_gaussian(key: PRNGKeyArray, n_features: int, width: int) -> Float[Array, "f k"]:
    """Rows each distributed as N(0, I), and orthogonal in blocks of `width` rows, the last of which may be cut
    (Choromanski et al. 2021, the O in FAVOR+)."""
    direction_key, norm_key = jax.random.split(key)
    blocks = jax.random.orthogonal(direction_key, width, (-(-n_features // width),))
    rows = blocks.reshape(-1, width)[:n_features]
    return rows * jnp.linalg.norm(jax.random.normal(norm_key, rows.shape), axis=-1, keepdims=True)


def _shift(exponent: jax.Array) -> jax.Array:
    """The exponents under their largest; no gradient passes it, because it cancels in the output."""
    return exponent - lax.stop_gradient(exponent.max(-1, keepdims=True))
