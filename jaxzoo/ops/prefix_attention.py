"""Taylor attention with a prefix whose tokens see one another (`Context.prefix`).

With w_ij = 1 + s_ij + s_ij^2/2 and the tokens P of the prefix of a document:

    y_i = sum_j w_ij v_j / (sum_j w_ij + eps)      over j <= i, and over all j in P if i is in P

Two causal passes: one as ever, and one from the end of the prefix to its beginning, which gives the sums over j > i.
Its keys are delayed by one token, so that no pass counts the token itself twice. A column of ones next to the values
makes the denominators, and where values and ones are zero a token has no weight. Everything is float32.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxzoo.utils.array_typing import Array, Bool, Float, Int
from pallas_kernels.taylor_attention import TaylorState


def prefix_attention(
    attend: Callable[..., Any],
    prefix: Bool[Array, "b t"],
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t g k"],
    v: Float[Array, "b t g v"],
    *,
    eps: float,
    normalize: bool,
    decay: None,
    chunk_size: int | None,
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: TaylorState | None = None,
    return_state: bool = False,
) -> Any:
    """Taylor attention with a prefix; cost of two calls of `attend`.

    Args:
      attend: `taylor_attention`, or the sharded form.
      prefix: the first tokens of each document, or none.
      q, k, v, eps, normalize, chunk_size, segment_ids, return_state: as in `taylor_attention`.
      decay: None; a decay has no direction within a prefix.
      initial_state: sums over earlier tokens, which all tokens see.

    Returns:
      y (b, t, h, v) in the dtype of v, or (y, state); the state is that of causal attention.
    """
    dtype, options = v.dtype, {"normalize": False, "decay": decay, "chunk_size": chunk_size}
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    values = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
    start = None
    if initial_state is not None:
        s, z = initial_state
        start = TaylorState(jnp.concatenate([s, z[..., None]], axis=-1), z)
    found = attend(q, k, values, initial_state=start, return_state=return_state, segment_ids=segment_ids, **options)
    sums = found[0] if return_state else found
    backward = attend(
        _reversed(q),
        _delayed(_reversed(k)),
        _later_values(values, prefix, segment_ids),
        segment_ids=None if segment_ids is None else _reversed(segment_ids),
        **options,
    )
    sums = sums + jnp.where(prefix[..., None, None], _reversed(backward), 0.0)
    y = sums[..., :-1]
    if normalize:
        y = y / (sums[..., -1:] + eps)
    y = y.astype(dtype)
    if not return_state:
        return y
    _, state = found
    return y, TaylorState(state.s[..., :-1], state.z)


def _reversed(x: Array) -> Array:
    return x[:, ::-1]


def _delayed(x: Array) -> Array:
    """The array of the token before; zeros for the first."""
    return jnp.pad(x, [(0, 0), (1, 0)] + [(0, 0)] * (x.ndim - 2))[:, :-1]


def _later_values(
    values: Array, prefix: Bool[Array, "b t"], segment_ids: Int[Array, "b t"] | None
) -> Float[Array, "b t g v"]:
    """Values in reverse order, delayed by one token; zero for tokens outside of the prefix of the same document."""
    kept = _delayed(_reversed(prefix))
    if segment_ids is not None:
        ids = _reversed(segment_ids)
        kept = kept & (ids == _delayed(ids))
    return jnp.where(kept[..., None, None], _delayed(_reversed(values)), 0.0)
