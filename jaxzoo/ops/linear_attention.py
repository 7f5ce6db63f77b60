"""Linear attention with any features and any decay: the recurrence of most linear mixers, in chunks.

    S_i = a_i S_{i-1} + k_i v_i^T        z_i = a_i z_{i-1} + k_i
    y_i = q_i^T S_i                      or, normalised, q_i^T S_i / (q_i . z_i + eps)

with q and k already mapped to features and a decay `a` in (0, 1] that is 1, a number a head (RetNet, Sun et al. 2023,
eq. 6), a number a token and head (Mamba-2), or one for each channel of the keys of a token (GLA, Yang et al. 2024,
eq. 4; the decay acts on the state before the token is written).

A chunk of tokens meets itself by its scores (`decayed_scores.py`) and everything before it by the state. On a CPU a
scan takes one chunk after another, whose arrays stay in its caches. On an accelerator, where each step of a scan is a
dozen launches, what is within chunks is computed for all chunks at once, and their states are summed by an associative
scan.

Memory: the inputs and one state a chunk; everything inside a chunk is computed again in the backward pass. Sums and
states are float32.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial

from jaxzoo.array_typing import Array, Float, Int
from jaxzoo.layers.probe import show, show_scores
from jaxzoo.ops.decayed_scores import PIECE as PIECE, decayed_scores, product, sum_from_start, sum_to_end
from jaxzoo.sequence_parallel import scan_in_parts
from pallas_kernels.dispatch import may_run_on

CHUNK = 64
"""Tokens of a chunk, unless the caller says otherwise."""
STATES_AT_ONCE = 2**27
"""Numbers, per device, in the states of the chunks that an accelerator computes at once; longer sequences are cut."""


class LinearState(NamedTuple):
    """The sums over the past, float32."""

    s: Float[Array, "b h k v"]
    """Decayed sum of `k_j v_j^T`."""
    z: Float[Array, "b h k"] | None
    """Decayed sum of `k_j`; None where nothing is normalised."""


def empty_state(batch_size: int, n_heads: int, k_dim: int, v_dim: int, *, normalize: bool) -> LinearState:
    """The state before the first token: zeros."""
    s = jnp.zeros((batch_size, n_heads, k_dim, v_dim), jnp.float32)
    return LinearState(s, jnp.zeros(s.shape[:3], jnp.float32) if normalize else None)


def linear_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
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
    """The equation of the module docstring for `t >= 0` tokens from any state.

    Differentiable in all float arguments, through the output and the final state.

    Args:
      q: queries, mapped to features; scaled by the caller.
      k: keys, likewise.
      v: values.
      log_decay: logarithm of `a`, at most 0, finite; a leading axis of 1 serves all rows. None: no decay.
      normalize: divides by the sum of the weights.
      eps: added to that sum; where the total is 0, the output is 0.
      segment_ids: packed documents, int32: each is one contiguous run of equal ids, and nothing of an earlier one is
        seen. The state returned is that of the last document.
      initial_state: sums over the tokens before, with `z` if and only if `normalize`; None: there are none.
      squares: queries and keys with `q . k = (squares[0] . squares[1])^2`. Within a chunk the weights are then these
        squares: a sum of signed products of features rounds small weights away, or below 0.
      chunk_size: tokens that meet by their scores; changes the speed alone.

    Returns:
      y in the dtype of `v`, and the state after the last token. O(t (chunk_size + k) v) time a head, and memory for
      the inputs and t / chunk_size states. Where devices share out time, they pass on states alone.
    """
    (b, t, h, k_dim), v_dim = q.shape, v.shape[3]
    empty = empty_state(b, h, k_dim, v_dim, normalize=normalize)
    state = empty if initial_state is None else initial_state
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
    run = Partial(functools.partial(_scan, eps=eps, chunk_size=chunk_size))
    return scan_in_parts(run, Partial(_kept), (q, k, v, log_decay, squares), segment_ids, state, empty)


def _kept(tokens: tuple) -> Array:
    """What all tokens keep of the state before them, (b or 1, h or 1, k or 1)."""
    log_decay = tokens[3]
    return jnp.ones((1, 1, 1)) if log_decay is None else jnp.exp(log_decay.sum(1))


def _scan(
    tokens: tuple, segment_ids: Array | None, state: LinearState, *, eps: float, chunk_size: int
) -> tuple[Array, LinearState]:
    """`linear_attention` chunk by chunk, of queries, keys, values, decays (b or 1, t, h, k or 1) and `squares`."""
    q, _, v, *_ = tokens
    (b, t, h, _), v_dim = q.shape, v.shape[3]
    precision = lax.Precision.DEFAULT if v.dtype == jnp.bfloat16 else lax.Precision.HIGHEST
    starts = None
    if segment_ids is not None:
        starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0

    size = min(chunk_size, max(-(-t // PIECE), 1) * PIECE)
    at_once = 1
    if not may_run_on("cpu"):
        most = STATES_AT_ONCE * max(jax.sharding.get_abstract_mesh().size, 1) // max(state.s.size, 1)
        at_once = max(1, min(-(-t // size), most))
    chunks = jax.tree.map(lambda x: _cut(x, size, at_once), (*tokens, starts))

    @jax.checkpoint
    def body(state: LinearState, tokens: tuple) -> tuple[LinearState, Array]:
        if at_once == 1:
            # Without the barrier XLA's CPU compiler (jax 0.12.0) fuses what follows into the matmuls where the scan has
            # one chunk, and they give other numbers, or NaN: the quotient (one head, no initial state, b t of 4,000 or
            # more), a norm of y (b = t = 64).
            num, den, state = lax.optimization_barrier(_chunk(state, *tokens, precision=precision))
        else:
            num, den, state = _chunks(state, tokens, at_once, precision=precision)
        y = num if den is None else _quotient(num, den, eps)
        return state, y.swapaxes(1, 2).astype(v.dtype)

    if len(chunks[0]) == 1 and at_once > 1:
        state, y = body(state, jax.tree.map(lambda x: x[0], chunks))
        y = y[None]
    else:
        state, y = lax.scan(body, state, chunks)
    y = y.reshape(-1, b, at_once * size, h, v_dim).swapaxes(0, 1)
    return y.reshape(b, -1, h, v_dim)[:, :t], state


def bidirectional_linear_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    normalize: bool = False,
    eps: float = 1e-6,
) -> Float[Array, "b t h v"]:
    """Every token reads the sums over all tokens: O(k v) a token and head. Sums are float32, y has the dtype of `v`."""
    precision = lax.Precision.HIGHEST if v.dtype == jnp.float32 else lax.Precision.DEFAULT
    q, k, values = (x.astype(jnp.float32) for x in (q, k, v))
    s = jnp.einsum("bthk,bthv->bhkv", k, values, precision=precision)
    y = jnp.einsum("bthk,bhkv->bthv", q, s, precision=precision)
    if normalize:
        weights = jnp.einsum("bthk,bhk->bth", q, k.sum(1), precision=precision)
        y = _quotient(y, weights, eps)
    return y.astype(v.dtype)


def linear_attention_step(
    state: LinearState,
    q: Float[Array, "b h k"],
    k: Float[Array, "b h k"],
    v: Float[Array, "b h v"],
    *,
    log_decay: Float[Array, "h"] | Float[Array, "b h"] | Float[Array, "b h k"] | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
) -> tuple[Float[Array, "b h v"], LinearState]:
    """One token: `linear_attention` with t = 1, at O(k v) a head."""
    q, k, values = (x.astype(jnp.float32) for x in (q, k, v))
    kept = jnp.ones((1, 1, 1)) if log_decay is None else jnp.exp(_by_token(log_decay, q.ndim))
    s = kept[..., None] * state.s + k[..., :, None] * values[..., None, :]
    # Sums of products, not matrix products, which could round float32 to tf32 or bfloat16.
    y, z = (q[..., :, None] * s).sum(2), None
    if normalize:
        assert state.z is not None
        z = kept * state.z + k
        y = _quotient(y, (q * z).sum(-1), eps)
    return y.astype(v.dtype), LinearState(s, z)


def _quotient(num: jax.Array, den: jax.Array, eps: float) -> jax.Array:
    """`num / (den + eps)`; 0 where a token, such as one of padding, has no weight at all, in gradients too."""
    total = den + np.float32(eps)
    return num / jnp.where(total == 0, 1.0, total)[..., None]


def _by_token(log_decay: jax.Array, ndim: int) -> jax.Array:
    """(h,), (..., h) or (..., h, k) -> float32 of `ndim` axes, ending in (h, 1) or (h, k)."""
    log_decay = log_decay.astype(jnp.float32)
    if log_decay.ndim < ndim:
        log_decay = log_decay[..., None]
    return log_decay.reshape((1,) * (ndim - log_decay.ndim) + log_decay.shape)


def _cut(x: jax.Array, size: int, at_once: int) -> jax.Array:
    """(b, t, ...) -> (n, b at_once, size, ...). Zeros after the last token: keys that add nothing, decays of 1."""
    b, t, *rest = x.shape
    n = -(-t // (at_once * size))
    x = jnp.pad(x, [(0, 0), (0, n * at_once * size - t)] + [(0, 0)] * len(rest))
    return x.reshape(b, n, at_once, size, *rest).swapaxes(0, 1).reshape(n, b * at_once, size, *rest)


def _chunks(state, tokens, n: int, *, precision):
    """`_chunk` of n chunks of every row at once, of tokens (b n, c, h, .)."""
    (*arrays, starts), b = tokens, state.s.shape[0]
    rows = b * n
    arrays = jax.tree.map(lambda x: x if len(x) == rows else jnp.tile(x, (b,) + (1,) * (x.ndim - 1)), arrays)
    chunk = functools.partial(_chunk, q=arrays[0], k=arrays[1], v=arrays[2], log_decay=arrays[3], squares=arrays[4])
    zeros = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), state)
    own = chunk(zeros, starts=starts, precision=precision)[2]
    kept = _factors(arrays[3], starts, arrays[0].shape[1])[2]
    kept = jnp.broadcast_to(kept, (rows, *kept.shape[1:]))
    by_chunk = lambda x: x.reshape(b, n, *x.shape[1:])  # noqa: E731
    sums = jax.tree.map(lambda first, x: jnp.concatenate([first[:, None], by_chunk(x)], axis=1), state, own)
    factors = jnp.concatenate([jnp.ones_like(by_chunk(kept)[:, :1]), by_chunk(kept)], axis=1)

    def joined(earlier, later):
        (f, x), (g, y) = earlier, later
        return f * g, jax.tree.map(lambda x, y: x * g.reshape(*g.shape, *[1] * (x.ndim - g.ndim)) + y, x, y)

    states = lax.associative_scan(joined, (factors, sums), axis=1)[1]
    before = jax.tree.map(lambda x: x[:, :-1].reshape(rows, *x.shape[2:]), states)
    num, den, _ = chunk(before, starts=starts, precision=precision)
    return num, den, jax.tree.map(lambda x: x[:, -1], states)


def _chunk(state, q, k, v, log_decay, squares, starts, *, precision):
    """num (b, h, c, v), den (b, h, c) or None, and the state after the chunk, of tokens (b, c, h, .)."""
    matmul = functools.partial(product, precision=precision)
    q, k, v = (x.astype(jnp.float32).swapaxes(1, 2) for x in (q, k, v))
    decay = None if log_decay is None else log_decay.swapaxes(1, 2)
    begun = None if starts is None else jnp.cumsum(starts.astype(jnp.int32), axis=1)[:, None]

    c = q.shape[2]
    meet = jnp.asarray(np.tri(c, dtype=bool))[None, None]
    if begun is not None:
        meet = meet & (begun[..., :, None] == begun[..., None, :])
    if squares is None:
        scores = decayed_scores(q, k, decay, precision=precision)
    else:
        rows, columns = (x.astype(jnp.float32).swapaxes(1, 2) for x in squares)
        scores = decayed_scores(rows, columns, None if decay is None else decay / 2, precision=precision) ** 2
    scores = jnp.where(meet, scores, 0.0)
    reads, writes, kept = _factors(log_decay, starts, c)
    q, k = q * reads, k * writes
    num = matmul("bhij,bhjv->bhiv", scores, v) + matmul("bhik,bhkv->bhiv", q, state.s)
    s = kept[..., None] * state.s + matmul("bhjk,bhjv->bhkv", k, v)
    if state.z is None:
        return num, None, LinearState(s, None)
    den = scores.sum(-1) + matmul("bhik,bhk->bhi", q, state.z)
    return num, den, LinearState(s, kept * state.z + k.sum(2))


def _factors(log_decay, starts, c: int):
    """Decays to each token from the start of its chunk, from it to the end, and of the whole; 0 across the start of a
    document. (b or 1, h or 1, c, k or 1), the last without c."""
    decay = jnp.zeros((1, 1, c, 1)) if log_decay is None else log_decay.swapaxes(1, 2)
    reads, writes, kept = jnp.exp(sum_from_start(decay)), jnp.exp(sum_to_end(decay)), jnp.exp(decay.sum(2))
    if starts is None:
        return reads, writes, kept
    begun = jnp.cumsum(starts.astype(jnp.int32), axis=1)[:, None]
    reads = jnp.where((begun == 0)[..., None], reads, 0.0)
    writes = jnp.where((begun == begun[..., -1:])[..., None], writes, 0.0)
    return reads, writes, jnp.where(begun[..., -1:] == 0, kept, 0.0)
