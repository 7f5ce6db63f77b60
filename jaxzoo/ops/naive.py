"""Building blocks of the `naive_` forms: the definition of each op in a few lines, slow, for readers and for tests.

They share no code with the chunked forms, and compute in the dtype of their inputs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxzoo.utils.array_typing import Array, Bool, Float, Int


def scan_tokens(
    token: Callable, state: Any, tokens: Any, segment_ids: Int[Array, "b t"] | None = None
) -> tuple[Any, Any]:
    """Outputs (b, t, ...) and last state of `state, y = token(state, x)`, applied to one token `x` after another.

    The state is set to zero before the first token of each document after the first.
    """
    shape = jax.tree.leaves(tokens)[0].shape[:2]
    ids = jnp.zeros(shape, jnp.int32) if segment_ids is None else jnp.asarray(segment_ids)

    def body(carry: tuple, now: tuple) -> tuple:
        (state, last_id), (x, segment_id) = carry, now
        keep = lambda s: jnp.where((segment_id == last_id).reshape(-1, *[1] * (s.ndim - 1)), s, jnp.zeros_like(s))  # noqa: E731
        state, y = token(jax.tree.map(keep, state), x)
        return (state, segment_id), y

    time_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (tokens, ids))
    (state, _), y = jax.lax.scan(body, (state, ids[:, 0]), time_first)
    return jnp.swapaxes(y, 0, 1), state


def attend_all(
    q: Float[Array, "b t h k"], k: Float[Array, "b s g k"], v: Float[Array, "b s g v"], visible: Bool[Array, "#b t s"]
) -> tuple[Float[Array, "b t h v"], Float[Array, "b t h"]]:
    """Softmax attention over all visible pairs, and the logarithm of the sum of weights; O(t s)."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bihk,bjhk->bhij", q, k) / q.shape[3] ** 0.5
    scores = jnp.where(visible[:, None], scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1)
    return jnp.einsum("bhij,bjhv->bihv", jnp.exp(scores - lse[..., None]), v), lse.swapaxes(1, 2)
