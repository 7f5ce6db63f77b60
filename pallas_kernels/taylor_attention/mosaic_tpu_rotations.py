"""The Taylor features of a head by rotations of its channels, and their pull-back: neither has a matmul.

Tokens are on the lanes and a head's k channels on the sublanes, so that x_(i+j mod k) for all i is an unaligned load
from a scratch that repeats the first channels. With m = k / 2, the rows of phi^T are

    x_i x_(i+j mod k), j = 0 .. m-1 (k rows each) | x (k) | x_i x_(i+m), i < m | 1 | 0 ...

in which no pair occurs twice: 153 features and 7 zeros for k = 16. Queries carry the weights. With a = 1 / scale,

    2 a^2 (1 + s + s^2/2) = (q.k + a)^2 + a^2 = W phi(q) . phi(k)      W: squares 1, pairs 2, x 2a, constant 2a^2

The public order (`features.py`) is a permutation of the rows that are not zeros.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.taylor_attention.features import n_features, pair_indices

SUBLANES = 8


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def n_rows(k: int) -> int:
    """Rows of phi^T: whole tiles of bfloat16."""
    return round_up(n_features(k), 2 * SUBLANES)


def scratch_rows(k: int) -> int:
    """Rows of the scratch of one head: its channels, and the first of them again."""
    return k + round_up(k // 2, SUBLANES)


def public_rows(k: int) -> np.ndarray:
    """The row of each feature of `features.py`, (features,)."""
    first, second = pair_indices(k)
    shift, half, linear = second - first, k // 2, k * k // 2
    pairs = np.where(shift < half, shift * k + first, (k - shift) * k + second)
    pairs = np.where(shift == half, linear + k + first, pairs)
    return np.concatenate([[linear + k + half], linear + np.arange(k), pairs])


def spread(xt, ref, k):
    """x^T (heads*k, c) -> ref (heads, scratch_rows, c) float32."""
    x = xt.astype(jnp.float32).reshape(ref.shape[0], k, xt.shape[1])
    ref[:, :k] = x
    ref[:, k:] = x[:, : ref.shape[1] - k]


def features(ref, head, k, dtype, a=None):
    """phi^T of one head from its scratch, times W if `a` is given: (n_rows, c)."""
    x, half = ref[head, :k], k // 2
    twice, linear, constant = (x, x, 1.0) if a is None else (x + x, (2 * a) * x, 2 * a * a)
    rows = [x * x, *(twice * ref[head, j : j + k] for j in range(1, half)), linear]
    whole = round_up(half, SUBLANES)
    last = twice[:whole] * ref[head, half : half + whole]
    if whole == half:
        rows += [last, jnp.where(_row(SUBLANES, x) == 0, constant, 0.0)]
    else:
        rows.append(jnp.where(_row(whole, x) < half, last, jnp.where(_row(whole, x) == half, constant, 0.0)))
    rows.append(jnp.zeros((n_rows(k) - sum(len(part) for part in rows), x.shape[1]), jnp.float32))
    return _concatenate(rows).astype(dtype)


def pull_back(u, ref, head, k, a=None):
    """J^T u for J = d phi / dx, or with `a` for W phi / 2: u (n_rows, c) float32 -> (k, c)."""
    x, half = ref[head, :k], k // 2
    linear = half * k
    dx = (u[:k] * (x + x) + u[linear : linear + k]) if a is None else (u[:k] * x + a * u[linear : linear + k])
    pairs = [u[j * k : (j + 1) * k] for j in range(1, half)]
    last = u[linear + k : linear + k + half]
    if half % SUBLANES == 0:
        dx += jnp.concatenate([last * x[half:], last * x[:half]])
    else:
        last = u[linear + k : linear + k + round_up(half, SUBLANES)]
        last = jnp.where(_row(len(last), x) < half, last, 0.0)
        pairs.append(_concatenate([last, jnp.zeros((k - len(last), x.shape[1]), jnp.float32)]))
    for j, pair in enumerate(pairs, start=1):
        dx += pair * ref[head, j : j + k] + pltpu.roll(pair * x, j, 0)
    return dx


def _row(rows, like):
    return lax.broadcasted_iota(jnp.int32, (rows, like.shape[1]), 0)


def _concatenate(parts):
    return jnp.concatenate([part for part in parts if len(part)])
