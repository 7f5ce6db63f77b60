"""Attention with ReLU and two MLPs solve MQAR of binary tokens (Based, Prop. F.16).

Triples `(k_i, v_i, q_i)` of d bits, a row each. Attention scores `ReLU(Q K^T + B)` are 1 where a query equals a key,
and else 0, as bits of +-1 have products of at most d. Two MLPs along the row of scores leave the first match:

    Z' = ReLU(Z W_1 W_2 + 1)     1 up to the first match   (W_1: sums from a column on; W_2: less the whole sum)
    Z'' = Z' W_3                 1 at the first match      (W_3: differences of neighbors)

and the output is `Z'' V`. jaxzoo's attention has a softmax, so this is a function of arrays with the proof's matrices.

Deviations and errors in the paper. B is -d + 1 everywhere in the proof, so a query would also match its own key and
later ones; here it is that only where the key comes first, and -2 d elsewhere. W_2 is printed with `W_2[0, 0] = -1`,
which leaves -1 at column 0 where a later column matches; it must be 0, as in the line below it. The matrices are
printed as d x d; they are 3 N x 3 N, as they act on columns of scores: this solution is O(1) layers, but O(N^2)
parameters, unlike that of H.27. Rows of keys, queries and values are selected by their place, which no linear map of a
row does; here, as in the proof, Q, K and V are given. Without a match the last column is chosen, whose value is 0.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.utils.array_typing import Array, Float


def solve(u: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """Returns the value of the first earlier key that equals the query, in rows of queries, with bits of +-1; zeros
    where none does, and in other rows. `u` has the bits 0 and 1 of keys, values and queries in turn."""
    t, d = u.shape[1:]
    w = 2 * u - 1
    place = np.arange(t) % 3
    is_key, is_query = (jnp.asarray(place == role, u.dtype)[None, :, None] for role in (0, 2))
    q, k, v = w * is_query, w * is_key, jnp.roll(w, -1, axis=1) * is_key
    bias = np.where(np.tri(t, k=-3, dtype=bool), 1 - d, -2 * d)  # a query is two rows after its own key
    scores = jax.nn.relu(jnp.einsum("bid,bjd->bij", q, k) + jnp.asarray(bias, u.dtype)[None])
    first, second, third = (jnp.asarray(matrix, u.dtype) for matrix in matrices(t))
    until = jax.nn.relu(jnp.einsum("bij,jk,kl->bil", scores, first, second) + 1)
    return jnp.einsum("bij,jk,bkd->bid", until, third, v)


def matrices(t: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns W_1, W_2 and W_3 for t columns."""
    subtract = np.eye(t)
    subtract[0] = -1
    subtract[0, 0] = 0
    return np.tri(t), subtract, np.eye(t) - np.eye(t, k=-1)
