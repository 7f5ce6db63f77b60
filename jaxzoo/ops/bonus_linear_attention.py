"""Linear attention whose query reads the state before the token is written, with a bonus (RWKV-5 and 6, Peng et al.
2024).

    y_i = q_i^T (S_{i-1} + Diag(u) k_i v_i^T)        S_i = Diag(a_i) S_{i-1} + k_i v_i^T

with a decay `a` in (0, 1] per channel of the keys, constant (RWKV-5) or per token (RWKV-6), and a bonus u.

`linear_attention` writes before it reads, so it gets the queries shifted by one token and its outputs are shifted back;
the first query reads the initial state.
"""

import functools

import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial

from jaxzoo.layers.probe import show, show_scores
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention
from jaxzoo.ops.naive import scan_tokens
from jaxzoo.parallel.sequence_parallel import scan_in_parts
from jaxzoo.utils.array_typing import Array, Float, Int
from jaxzoo.utils.explicit_mesh import recurrence_on_any_mesh


def naive_bonus_linear_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    log_decay: Float[Array, "h k"] | Float[Array, "b t h k"],
    bonus: Float[Array, "h k"],
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: Float[Array, "b h k v"],
) -> tuple[Float[Array, "b t h v"], Float[Array, "b h k v"]]:
    """Token-by-token form of `bonus_linear_attention`."""

    def token(s: Array, x: tuple) -> tuple[Array, Array]:
        q, k, v, a = x
        written = k[..., :, None] * v[..., None, :]
        y = jnp.einsum("bhk,bhkv->bhv", q, s + bonus[None, :, :, None] * written)
        return a[..., None] * s + written, y

    a = jnp.broadcast_to(jnp.exp(log_decay), k.shape)
    return scan_tokens(token, initial_state, (q, k, v, a), segment_ids)


@recurrence_on_any_mesh
def bonus_linear_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    log_decay: Float[Array, "h k"] | Float[Array, "b t h k"],
    bonus: Float[Array, "h k"],
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: Float[Array, "b h k v"] | None = None,
    chunk_size: int = CHUNK,
) -> tuple[Float[Array, "b t h v"], Float[Array, "b h k v"]]:
    """Applies the equation of the module docstring to `t >= 0` tokens, from any state.

    Differentiable in all float arguments, through the output and the final state.

    Args:
      q: queries (RWKV's receptance).
      log_decay: logarithm of `a`, at most 0, finite.
      bonus: u, weight of the token's own key; any sign.
      segment_ids: ids of packed documents, int32; each document is one contiguous run of equal ids and sees no other.
        The returned state is the last document's.
      initial_state: S before the first token, float32; None: zeros.
      chunk_size: chunk length; affects only the speed.

    Returns:
      y in the dtype of `v`, and S after the last token, float32. O(t (chunk_size + k) v) time per head, and memory for
      the inputs and t / chunk_size states. If time is sharded, devices exchange only states.
    """
    b, t, h, k_dim = k.shape
    empty = jnp.zeros((b, h, k_dim, v.shape[3]), jnp.float32)
    log_decay = log_decay.astype(jnp.float32).reshape((1,) * (4 - log_decay.ndim) + log_decay.shape)
    log_decay = jnp.broadcast_to(log_decay, (log_decay.shape[0], t, h, k_dim))
    state = empty if initial_state is None else initial_state
    if initial_state is None:
        log_decay = show("log_decay", log_decay)
        again = functools.partial(bonus_linear_attention, q, k, log_decay=log_decay, bonus=bonus)
        show_scores(lambda unit: again(unit, segment_ids=segment_ids)[0], v)
    run = Partial(functools.partial(_scan, chunk_size=chunk_size), bonus)
    return scan_in_parts(run, Partial(_kept), (q, k, v, log_decay), segment_ids, state, empty)


def _kept(tokens: tuple) -> Float[Array, "#b h k"]:
    """Decay of the state over all tokens."""
    return jnp.exp(tokens[3].sum(1))


def _scan(
    bonus: Array, tokens: tuple, segment_ids: Array | None, initial_state: Array, *, chunk_size: int
) -> tuple[Array, Array]:
    """Computes `bonus_linear_attention` in chunks; tokens are q, k, v and log decays (b or 1, t, h, k)."""
    q, k, v, log_decay = tokens
    reader = jnp.concatenate([q[:, 1:], jnp.zeros_like(q[:, :1])], axis=1)  # query of the next token
    if segment_ids is not None:
        ends = jnp.diff(segment_ids, axis=1, append=segment_ids[:, -1:]) != 0
        reader = jnp.where(ends[..., None, None], jnp.zeros_like(reader), reader)
    past = LinearState(initial_state, None)
    y, after = linear_attention(
        reader, k, v, log_decay=log_decay, segment_ids=segment_ids, initial_state=past, chunk_size=chunk_size
    )
    first = jnp.einsum("bthk,bhkv->bthv", q[:, :1].astype(jnp.float32), initial_state, precision=lax.Precision.HIGHEST)
    y = jnp.concatenate([first, y[:, :-1].astype(jnp.float32)], axis=1)
    return (y + _own(q, k, v, bonus[None, None])).astype(v.dtype), after.s


def bonus_linear_attention_step(
    state: Float[Array, "b h k v"],
    q: Float[Array, "b h k"],
    k: Float[Array, "b h k"],
    v: Float[Array, "b h v"],
    *,
    log_decay: Float[Array, "h k"] | Float[Array, "b h k"],
    bonus: Float[Array, "h k"],
) -> tuple[Float[Array, "b h v"], Float[Array, "b h k v"]]:
    """One token: `bonus_linear_attention` with t = 1, at O(k v) per head."""
    log_decay = log_decay.astype(jnp.float32).reshape((-1, *log_decay.shape)[-3:])
    # A sum of products, not a matrix product, which could round float32 to tf32 or bfloat16.
    y = (q.astype(jnp.float32)[..., None] * state).sum(2) + _own(q, k, v, bonus[None])
    y, k, v = y.astype(v.dtype), k.astype(jnp.float32), v.astype(jnp.float32)
    return y, jnp.exp(log_decay)[..., None] * state + k[..., :, None] * v[..., None, :]


def _own(q: Array, k: Array, v: Array, bonus: Array) -> Array:
    """`q_i^T Diag(u) k_i v_i^T`, float32."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    return (q * bonus * k).sum(-1, keepdims=True) * v
