"""Linear attention in chunks, with any features and any decay: the recurrence of most linear mixers.

    S_i = a_i S_{i-1} + k_i v_i^T        z_i = a_i z_{i-1} + k_i
    y_i = q_i^T S_i                      or, normalised, q_i^T S_i / (q_i . z_i + eps)

with q and k already mapped to features and a decay `a` in (0, 1]: 1, one number per head (RetNet, Sun et al. 2023, eq.
6), per token and head (Mamba-2), or per token and channel of the keys (GLA, Yang et al. 2024, eq. 4). The decay acts on
the state before the token is written.

Memory: the inputs and one state per chunk
(`pallas_kernels/gated_linear_attention/xla.py`).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial

from jaxzoo.layers.probe import show, show_scores
from jaxzoo.ops.naive import scan_tokens
from jaxzoo.parallel.sequence_parallel import scan_in_parts
from jaxzoo.parallel.sharding import on_mesh
from jaxzoo.utils.array_typing import Array, Float, Int
from jaxzoo.utils.explicit_mesh import recurrence_on_any_mesh
from pallas_kernels.dispatch import may_run_by_default
from pallas_kernels.gated_linear_attention import gated_linear_attention, sharded_gated_linear_attention
from pallas_kernels.gated_linear_attention.decayed_scores import PIECE as PIECE
from pallas_kernels.gated_linear_attention.xla import (
    CHUNK as CHUNK,
    LinearState as LinearState,
    Tokens,
    quotient,
    scan,
    with_resets,
)

TILE = 64
"""Kernels need key and value widths that are multiples of it."""


def naive_linear_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    log_decay: Float[Array, "h"] | Float[Array, "b t h"] | Float[Array, "b t h k"] | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: LinearState,
) -> tuple[Float[Array, "b t h v"], LinearState]:
    """Token-by-token form of `linear_attention`; its states always have `z`."""

    def token(state: LinearState, x: tuple) -> tuple[LinearState, Array]:
        q, k, v, a = x
        s = a[..., None] * state.s + k[..., :, None] * v[..., None, :]
        z = a * state.z + k
        y = jnp.einsum("bhk,bhkv->bhv", q, s)
        return LinearState(s, z), y / ((q * z).sum(-1) + eps)[..., None] if normalize else y

    a = jnp.ones(()) if log_decay is None else jnp.exp(log_decay)
    a = jnp.broadcast_to(a[..., None] if a.ndim in (1, 3) else a, k.shape)
    return scan_tokens(token, initial_state, (q, k, v, a), segment_ids)


def empty_state(batch_size: int, n_heads: int, k_dim: int, v_dim: int, *, normalize: bool) -> LinearState:
    """Initial state: zeros."""
    s = jnp.zeros((batch_size, n_heads, k_dim, v_dim), jnp.float32)
    return LinearState(s, jnp.zeros(s.shape[:3], jnp.float32) if normalize else None)


@recurrence_on_any_mesh
def linear_attention(
    q: Float[Array, "b t g k"],
    k: Float[Array, "b t g k"],
    v: Float[Array, "b t h v"],
    *,
    log_decay: Float[Array, "h"] | Float[Array, "#b t h"] | Float[Array, "#b t h k"] | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: LinearState | None = None,
    squares: tuple[Float[Array, "b t h d"], Float[Array, "b t h d"]] | None = None,
    chunk_size: int = CHUNK,
) -> tuple[Float[Array, "b t h v"], LinearState]:
    """Applies the equation of the module docstring to `t >= 0` tokens, from any state.

    Differentiable in all float arguments, through the output and the final state.

    Args:
      q: features of the queries, scaled by the caller. g divides h: each head of q and k serves h / g heads of v.
      k: features of the keys.
      log_decay: logarithm of `a`, at most 0, finite; a leading axis of 1 serves all rows. None: no decay.
      normalize: divides by the sum of the weights.
      eps: added to that sum; if the total is 0, the output is 0.
      segment_ids: ids of packed documents, int32; each document is one contiguous run of equal ids and sees no other.
        The returned state is the last document's.
      initial_state: sums over earlier tokens, with `z` if and only if `normalize`; None: zeros.
      squares: queries and keys with `q . k = (squares[0] . squares[1])^2`. Weights within a chunk are computed as these
        squares, since sums of signed products of features can round small weights to 0 or below.
      chunk_size: chunk length; affects only the speed.

    Without `normalize` and `squares`, Pallas kernels are used on devices where they are verified.

    Returns:
      y in the dtype of `v`, and the state after the last token. O(t (chunk_size + k) v) time per head, and memory for
      the inputs and t / chunk_size states. If time is sharded, devices exchange only states.
    """
    (b, t, h, v_dim), k_dim = v.shape, k.shape[3]
    empty = empty_state(b, h, k_dim, v_dim, normalize=normalize)
    state = empty if initial_state is None else initial_state
    if b == 0:
        return v, state
    if log_decay is not None:
        decay = _by_token(log_decay, q.ndim)
        if squares is not None and decay.shape[-1] > 1:
            raise ValueError(
                "linear_attention: squares need a decay of whole heads; got one for each channel of the keys"
            )
        log_decay = jnp.broadcast_to(decay, (decay.shape[0], t, *decay.shape[2:]))
    if initial_state is None:
        log_decay = None if log_decay is None else show("log_decay", log_decay)
        again = functools.partial(linear_attention, q, k, log_decay=log_decay, normalize=normalize, eps=eps)
        show_scores(lambda unit: again(unit, segment_ids=segment_ids, squares=squares)[0], v)
    served = log_decay is not None or k_dim % TILE == v_dim % TILE == 0  # without decay XLA reads fewer bytes
    if not normalize and squares is None and served and any(map(may_run_by_default, ("cuda", "tpu"))):
        attend = on_mesh(gated_linear_attention, sharded_gated_linear_attention, v, k)
        decays = jnp.zeros((1, 1, 1, 1)) if log_decay is None else log_decay
        decays = decays[..., 0] if decays.shape[-1] == 1 else decays
        decays = jnp.broadcast_to(decays, (b, t, h, *decays.shape[3:]))
        y, s = attend(q, k, v, decays, segment_ids=segment_ids, initial_state=state.s, return_state=True)
        return y, LinearState(s, None)
    q, k = (_for_values(x, h) for x in (q, k))
    run = Partial(functools.partial(_scan, eps=eps, chunk_size=chunk_size))
    return scan_in_parts(run, Partial(_kept), (q, k, v, log_decay, squares), segment_ids, state, empty)


def _kept(tokens: tuple) -> Array:
    """Decay of the state over all tokens, (b or 1, h or 1, k or 1)."""
    log_decay = tokens[3]
    return jnp.ones((1, 1, 1)) if log_decay is None else jnp.exp(log_decay.sum(1))


def _scan(
    tokens: tuple, segment_ids: Array | None, state: LinearState, *, eps: float, chunk_size: int
) -> tuple[Array, LinearState]:
    """Computes `linear_attention` in chunks; tokens are q, k, v, log decays (b or 1, t, h, k or 1) and `squares`."""
    q, k, v, log_decay, squares = tokens
    return scan(Tokens(q, k, v, with_resets(log_decay, segment_ids), squares), state, eps=eps, chunk_size=chunk_size)


def bidirectional_linear_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    normalize: bool = False,
    eps: float = 1e-6,
) -> Float[Array, "b t h v"]:
    """Non-causal linear attention, O(k v) per token and head; float32 sums, y has the dtype of `v`."""
    precision = lax.Precision.HIGHEST if v.dtype == jnp.float32 else lax.Precision.DEFAULT
    q, k, values = (x.astype(jnp.float32) for x in (q, k, v))
    s = jnp.einsum("bthk,bthv->bhkv", k, values, precision=precision)
    y = jnp.einsum("bthk,bhkv->bthv", q, s, precision=precision)
    if normalize:
        weights = jnp.einsum("bthk,bhk->bth", q, k.sum(1), precision=precision)
        y = quotient(y, weights, eps)
    return y.astype(v.dtype)


def linear_attention_step(
    state: LinearState,
    q: Float[Array, "b g k"],
    k: Float[Array, "b g k"],
    v: Float[Array, "b h v"],
    *,
    log_decay: Float[Array, "h"] | Float[Array, "b h"] | Float[Array, "b h k"] | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
) -> tuple[Float[Array, "b h v"], LinearState]:
    """One token: `linear_attention` with t = 1, at O(k v) per head."""
    q, k, values = (_for_values(x.astype(jnp.float32), v.shape[1]) for x in (q, k, v))
    kept = jnp.ones((1, 1, 1)) if log_decay is None else jnp.exp(_by_token(log_decay, q.ndim))
    s = kept[..., None] * state.s + k[..., :, None] * values[..., None, :]
    # Sums of products, not matrix products, which could round float32 to tf32 or bfloat16.
    y, z = (q[..., :, None] * s).sum(2), None
    if normalize:
        assert state.z is not None
        z = kept * state.z + k
        y = quotient(y, (q * z).sum(-1), eps)
    return y.astype(v.dtype), LinearState(s, z)


def linear_attention_from(
    state: LinearState | None,
    q: Float[Array, "*b g k"],
    k: Float[Array, "*b g k"],
    v: Float[Array, "*b h v"],
    *,
    segment_ids: Int[Array, "b t"] | None = None,
    squares: tuple[Array, Array] | None = None,
    chunk_size: int = CHUNK,
    **options: Any,
) -> tuple[Float[Array, "*b h v"], LinearState]:
    """Applies `linear_attention_step` to one token `(b, ..)`, or `linear_attention` to `(b, t, ..)`, from `state`.

    `options` are keyword arguments of both.
    """
    if state is not None and q.ndim == 3:
        return linear_attention_step(state, q, k, v, **options)
    past = {"segment_ids": segment_ids, "initial_state": state, "squares": squares, "chunk_size": chunk_size}
    return linear_attention(q, k, v, **past, **options)


def _for_values(x: jax.Array, h: int) -> jax.Array:
    """(..., g, k) -> (..., h, k): repeats each head for the value heads that it serves."""
    return x if x.shape[-2] == h else jnp.repeat(x, h // x.shape[-2], axis=-2)


def _by_token(log_decay: jax.Array, ndim: int) -> jax.Array:
    """(h,), (..., h) or (..., h, k) -> float32 of `ndim` axes, ending in (h, 1) or (h, k)."""
    log_decay = log_decay.astype(jnp.float32)
    if log_decay.ndim < ndim:
        log_decay = log_decay[..., None]
    return log_decay.reshape((1,) * (ndim - log_decay.ndim) + log_decay.shape)
