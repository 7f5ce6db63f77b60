"""Decayed linear attention in plain XLA: chunk by chunk on a CPU, many chunks at once on an accelerator.

A chunk uses scores within the chunk (`decayed_scores.py`) and the state for earlier tokens. A CPU scans the chunks. On
an accelerator all chunks are computed at once, with an associative scan of their states. The backward pass recomputes
chunks.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.gated_linear_attention.decayed_scores import PIECE, decayed_scores, sums_to_borders
from pallas_kernels.xla_chunks import chunks_at_once, precision_of, product, states_before

CHUNK = 64
"""Default chunk length."""
RESET = -8192.0
"""Log decay of a token that begins a document: its exp is 0, and sums of many are exact."""


class LinearState(NamedTuple):
    """Sums over past tokens, float32."""

    s: jax.Array
    """(b, h, k, v): decayed sum of `k_j v_j^T`."""
    z: jax.Array | None
    """(b, h, k): decayed sum of `k_j`; None without normalization."""


class Tokens(NamedTuple):
    """Inputs of a scan, per token."""

    q: jax.Array
    """(b, t, h, k)."""
    k: jax.Array
    """(b, t, h, k)."""
    v: jax.Array
    """(b, t, h, v)."""
    log_decay: jax.Array | None
    """(b or 1, t, h or 1, k or 1) float32, at most 0, finite; None: no decay."""
    squares: tuple[jax.Array, jax.Array] | None = None
    """Queries and keys (b, t, h, d) with `q . k = (squares[0] . squares[1])^2`: the weights within a chunk."""


def with_resets(log_decay: jax.Array | None, segment_ids: jax.Array | None) -> Any:
    """Log decays (b or 1, t, h or 1, k or 1) that reset the state at every document but the first."""
    if segment_ids is None:
        return log_decay
    starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
    return jnp.where(starts[..., None, None], RESET, jnp.zeros((1, 1, 1, 1)) if log_decay is None else log_decay)


def forward(q, k, v, log_decay, state) -> tuple[jax.Array, jax.Array]:
    """y and the last state (contract in `api.py`); differentiable."""
    b, t, h, v_dim = v.shape
    if q.shape[2] != h:
        q, k = (jnp.repeat(x, h // q.shape[2], axis=2) for x in (q, k))
    if state is None:
        state = jnp.zeros((b, h, k.shape[3], v_dim), jnp.float32)
    y, last = scan(Tokens(q, k, v, log_decay.reshape(b, t, h, -1)), LinearState(state, None))
    return y, last.s


def backward(q, k, v, log_decay, state, dy, dstate):
    """Gradients of `forward`, which is recomputed."""
    if dstate is None:
        dstate = jnp.zeros((v.shape[0], v.shape[2], k.shape[3], v.shape[3]), jnp.float32)
    return jax.vjp(forward, q, k, v, log_decay, state)[1]((dy, dstate))


def scan(
    tokens: Tokens, state: LinearState, *, eps: float = 0.0, chunk_size: int = CHUNK
) -> tuple[jax.Array, LinearState]:
    """y (b, t, h, v) in the dtype of v, divided by q . z + eps if the state has a z, and the state after t tokens.

    Differentiable in all arrays.
    """
    q, v = tokens.q, tokens.v
    (b, t, h, _), v_dim = q.shape, v.shape[3]
    precision = precision_of(v.dtype)
    size = min(chunk_size, max(-(-t // PIECE), 1) * PIECE)
    at_once = chunks_at_once(-(-t // size), state.s.size)
    chunks = jax.tree.map(lambda x: cut(x, size, at_once), tokens)

    @jax.checkpoint
    def body(state: LinearState, tokens: Tokens) -> tuple[LinearState, jax.Array]:
        if at_once == 1:
            # Without the barrier XLA's CPU compiler (jax 0.12.0) fuses what follows into the matmuls where the scan has
            # one chunk, and they give other numbers, or NaN: the quotient (one head, no initial state, b t of 4,000 or
            # more), a norm of y (b = t = 64).
            num, den, state = lax.optimization_barrier(_chunk(state, *tokens, precision=precision))
        else:
            num, den, state = _chunks(state, tokens, at_once, precision=precision)
        y = num if den is None else quotient(num, den, eps)
        return state, y.swapaxes(1, 2).astype(v.dtype)

    if len(chunks.q) == 1 and at_once > 1:
        state, y = body(state, jax.tree.map(lambda x: x[0], chunks))
        y = y[None]
    else:
        state, y = lax.scan(body, state, chunks)
    y = y.reshape(-1, b, at_once * size, h, v_dim).swapaxes(0, 1)
    return y.reshape(b, -1, h, v_dim)[:, :t], state


def quotient(num: jax.Array, den: jax.Array, eps: float) -> jax.Array:
    """`num / (den + eps)`; 0, with zero gradients, for tokens without weights, such as padding."""
    total = den + np.float32(eps)
    return num / jnp.where(total == 0, 1.0, total)[..., None]


def cut(x: jax.Array, size: int, at_once: int) -> jax.Array:
    """(b, t, ...) -> (n, b at_once, size, ...), padded with zeros: zero keys, decays of 1."""
    b, t, *rest = x.shape
    n = -(-t // (at_once * size))
    x = jnp.pad(x, [(0, 0), (0, n * at_once * size - t)] + [(0, 0)] * len(rest))
    return x.reshape(b, n, at_once, size, *rest).swapaxes(0, 1).reshape(n, b * at_once, size, *rest)


def _chunks(state: LinearState, tokens: Tokens, n: int, *, precision):
    """`_chunk` for n chunks of every row at once, with tokens (b n, c, h, .)."""
    b = state.s.shape[0]
    rows = b * n
    tokens = jax.tree.map(lambda x: x if len(x) == rows else jnp.tile(x, (b,) + (1,) * (x.ndim - 1)), tokens)
    zeros = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), state)
    own = _chunk(zeros, *tokens, precision=precision)[2]
    kept = _factors(tokens.log_decay, tokens.q.shape[1])[2]
    before, last = states_before(state, own, kept)
    num, den, _ = _chunk(before, *tokens, precision=precision)
    return num, den, last


def _chunk(state: LinearState, q, k, v, log_decay, squares, *, precision):
    """num (b, h, c, v), den (b, h, c) or None, and the state after the chunk, from tokens (b, c, h, .)."""
    matmul = functools.partial(product, precision=precision)
    q, k, v = (x.astype(jnp.float32).swapaxes(1, 2) for x in (q, k, v))
    decay = None if log_decay is None else log_decay.swapaxes(1, 2)
    c = q.shape[2]
    if squares is None:
        scores = decayed_scores(q, k, decay, precision=precision)
    else:
        rows, columns = (x.astype(jnp.float32).swapaxes(1, 2) for x in squares)
        scores = decayed_scores(rows, columns, None if decay is None else decay / 2, precision=precision) ** 2
    scores = jnp.where(np.tri(c, dtype=bool)[None, None], scores, 0.0)
    reads, writes, kept = _factors(log_decay, c)
    q, k = q * reads, k * writes
    num = matmul("bhij,bhjv->bhiv", scores, v) + matmul("bhik,bhkv->bhiv", q, state.s)
    s = kept[..., None] * state.s + matmul("bhjk,bhjv->bhkv", k, v)
    if state.z is None:
        return num, None, LinearState(s, None)
    den = scores.sum(-1) + matmul("bhik,bhk->bhi", q, state.z)
    return num, den, LinearState(s, kept * state.z + k.sum(2))


def _factors(log_decay, c: int):
    """Decays from the start of the chunk to each token, from it to the end, and of the whole chunk: (b or 1, h or 1, c,
    k or 1), the last one without c."""
    decay = jnp.zeros((1, 1, c, 1)) if log_decay is None else log_decay.swapaxes(1, 2)
    reads, writes = (jnp.exp(x) for x in sums_to_borders(decay))
    return reads, writes, jnp.exp(decay.sum(2))
