"""Taylor attention in plain XLA, in chunks of tokens; the backward pass recomputes states.

Notation, with s_ij = scale q_i.k_j, p_ij = decay^(i-j) (1 + s_ij + s_ij^2/2) for j <= i, v~ = [v, 1], and phi,
phi' = coefficients * phi of `features.py`. A chunk of c tokens uses the quadratic form within the chunk and the state
S~ = [S, z] for earlier tokens (Based, Alg. 1 with tiles of c tokens):

    [num_i, den_i] = sum_j p_ij v~_j + decay^(i+1) phi'(q_i) S~         y_i = num_i / (den_i + eps)
    S~ <- decay^c S~ + sum_j decay^(c-1-j) phi(k_j) v~_j^T

Backward, with dy~_i = [dy_i / den_i, -(dy_i.y_i) / den_i], r_ij = decay^(i-j) (1 + s_ij) for j <= i,
ds_ij = r_ij dy~_i.v~_j, J the Jacobian of phi, and dS~ the cotangent of the state after the chunk:

    dq_i = scale (sum_j ds_ij k_j + J(q_i)^T coefficients decay^(i+1) S~ dy~_i)                   forward scan
    dk_j = sum_i ds_ij scale q_i + J(k_j)^T decay^(c-1-j) dS~ v~_j                                reverse scan
    dv_j = sum_i p_ij dnum_i + decay^(c-1-j) phi(k_j) dS                                          reverse scan
    dS~ <- decay^c dS~ + sum_i decay^(i+1) phi'(q_i) dy~_i^T                                      reverse scan

Packed documents: p_ij and r_ij are 0 between documents; decay^(i+1) is 0 if a document begins in the chunk up to token
i, decay^(c-1-j) if one begins after token j, and decay^c if one begins at all.

The first scan carries S~ and the second dS~; residuals are q, k, v, y, den and the initial state. A sequence of one
chunk without a state needs no features. A CPU processes one chunk after another, an accelerator many at once, with an
associative scan of states (`xla_chunks.py`).

Sums of weights are separate from sums of values, to avoid matrices of v + 1 columns. Jacobians use features (b, h, f,
c), whose slices are contiguous.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.taylor_attention.state import TaylorState, empty_state
from pallas_kernels.taylor_attention.xla_chunk import ChunkMath
from pallas_kernels.xla_chunks import chunks_at_once, states_before

MAX_QUADRATIC_LENGTH = 256
DEFAULT_CHUNK = 128


class Forward(NamedTuple):
    """Outputs of `forward`."""

    y: jax.Array
    """(b, t, h, v), dtype of v."""
    state: TaylorState | None
    """State after the last token, or None."""
    den: jax.Array | None
    """(b, h, t) float32, sum of weights + eps; None if not normalize."""


class Gradients(NamedTuple):
    """Gradients in the dtypes of the inputs; None for a missing initial state."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    initial_state: TaylorState | None


class _Chunk(NamedTuple):
    """One chunk in the backward pass, heads first, float32."""

    math: ChunkMath
    q: jax.Array
    k: jax.Array
    v: jax.Array
    dnum: jax.Array
    dden: jax.Array | None
    scores: jax.Array
    dscores: jax.Array


def default_chunk(t: int) -> int:
    """Default chunk length for `t` tokens."""
    return max(t, 1) if t <= MAX_QUADRATIC_LENGTH else DEFAULT_CHUNK


def forward(q, k, v, *, scale, eps, normalize, initial_state=None, decay=None, segment_ids=None,
            return_state=False, chunk_size=None) -> Forward:  # fmt: skip
    """The forward pass: q (b, t, h, k), k (b, t, g, k), v (b, t, g, v), t >= 1, decay (h,) or None.

    segment_ids: (b, t) or None; an initial state belongs to the first document, the final state to the last.
    """
    chunk = chunk_size or default_chunk(q.shape[1])
    call = ChunkMath(k, n_heads=q.shape[2], scale=scale, decay=decay)

    def body(state, tokens):
        math = call.within(tokens[3])
        q, k, values = math.queries(tokens[0]), *map(math.shared_heads, tokens[1:3])
        weights = math.weights(math.scores(q, k))
        num, den = math.matmul("bhij,bhjv->bhiv", weights, values), weights.sum(-1)
        if state is not None:
            past_num, past_den = math.read(q, state)
            num, den = num + past_num, den + past_den
            state = math.advance(state, k, values)
        den = den + np.float32(eps)
        y = num / den[..., None] if normalize else num
        return state, (y.swapaxes(1, 2).astype(v.dtype), den.swapaxes(1, 2) if normalize else None)

    state = initial_state
    if state is None and (q.shape[1] > chunk or return_state):
        state = _zeros(q, v)
    state, (y, den) = _scan(call, body, state, (q, k, v, _document_starts(segment_ids)), chunk)
    return Forward(y, state if return_state else None, den.swapaxes(1, 2) if normalize else None)


def backward(q, k, v, y, den, dy, *, scale, normalize, initial_state=None, decay=None, segment_ids=None,
             dstate=None, chunk_size=None) -> Gradients:  # fmt: skip
    """Gradients of `forward`; y and den are its results, dstate the cotangent of the state or None."""
    chunk = chunk_size or default_chunk(q.shape[1])
    call = ChunkMath(k, n_heads=q.shape[2], scale=scale, decay=decay)
    dtypes = q.dtype, k.dtype, v.dtype

    def prepare(tokens):
        math = call.within(tokens[6])
        q, k, v = math.queries(tokens[0]), *map(math.shared_heads, tokens[1:3])
        dnum, dden = _output_cotangents(*tokens[3:6])
        scores = math.scores(q, k)
        return _Chunk(math, q, k, v, dnum, dden, scores, math.score_cotangents(scores, dnum, dden, v))

    def query_gradient(chunk, state):
        dq = chunk.math.query_gradient(chunk.dscores, chunk.q, chunk.k, chunk.dnum, chunk.dden, state)
        return dq.swapaxes(1, 2).astype(dtypes[0])

    def key_value_gradients(chunk, dstate):
        math = chunk.math
        dk = math.to_tokens(math.key_gradient(chunk.dscores, chunk.q, chunk.k, chunk.v, dstate))
        dv = math.to_tokens(math.value_gradient(math.weights(chunk.scores), chunk.dnum, chunk.k, dstate))
        return dk.astype(dtypes[1]), dv.astype(dtypes[2])

    def ahead(state, tokens):
        chunk = prepare(tokens)
        return chunk.math.advance(state, chunk.k, chunk.v), query_gradient(chunk, state)

    def back(dstate, tokens):
        chunk = prepare(tokens)
        return chunk.math.retreat(dstate, chunk.q, chunk.dnum, chunk.dden), key_value_gradients(chunk, dstate)

    outputs = (y, den.swapaxes(1, 2)) if normalize else (None, None)
    tokens = (q, k, v, dy, *outputs, _document_starts(segment_ids))
    if q.shape[1] <= chunk and initial_state is None and dstate is None:
        only = prepare(tokens)
        return Gradients(query_gradient(only, None), *key_value_gradients(only, None), None)
    zeros = _zeros(q, v)
    _, dq = _scan(call, ahead, zeros if initial_state is None else initial_state, tokens, chunk)
    dinitial, (dk, dv) = _scan(call, back, zeros if dstate is None else dstate, tokens, chunk, reverse=True)
    return Gradients(dq, dk, dv, None if initial_state is None else dinitial)


def final_state(k, v, *, n_heads, decay=None, segment_ids=None, chunk_size=None) -> TaylorState:
    """State after `forward` from zeros, without outputs; the backward pass recomputes the features."""
    call = ChunkMath(k, n_heads=n_heads, scale=1.0, decay=decay)
    zeros = empty_state(k.shape[0], n_heads, k.shape[3], v.shape[3])

    @jax.checkpoint
    def added(k, v, starts):
        return call.within(starts).advance(zeros, call.shared_heads(k), call.shared_heads(v))

    def body(state, tokens):
        kept = call.within(tokens[2]).kept(tokens[0].shape[1])
        if kept is not None:
            state = TaylorState(s=state.s * kept, z=state.z * kept[..., 0])
        return jax.tree.map(jnp.add, state, added(*tokens)), None

    return _scan(call, body, zeros, (k, v, _document_starts(segment_ids)), chunk_size or DEFAULT_CHUNK)[0]


def _zeros(q, v) -> TaylorState:
    return empty_state(q.shape[0], q.shape[2], q.shape[3], v.shape[3])


def _document_starts(segment_ids):
    """Mask of tokens whose id differs from the previous token's, (b, t); None: no such tokens."""
    if segment_ids is None:
        return None
    first = jnp.zeros_like(segment_ids[:, :1], bool)
    return jnp.concatenate([first, segment_ids[:, 1:] != segment_ids[:, :-1]], axis=1)


def _output_cotangents(dy, y, den):
    """dnum (b, h, c, v), dden (b, h, c) of tokens (b, c, h, .); y, den and dden are None if not normalize."""
    dy = dy.astype(jnp.float32).swapaxes(1, 2)
    if den is None:
        return dy, None
    dnum = dy / den.swapaxes(1, 2)[..., None]
    return dnum, -(dnum * y.astype(jnp.float32).swapaxes(1, 2)).sum(-1)


def _scan(call: ChunkMath, body, carry, tokens, chunk: int, *, reverse: bool = False):
    """Folds `body(carry, chunk of tokens) -> (carry, outputs)` over chunks; the last may be shorter and is not padded.

    tokens: (b, t, ...) or None, the last entry masks starts of documents; outputs likewise. A CPU processes one chunk
    after another, an accelerator many at once.
    """
    b, t = tokens[0].shape[:2]
    n, rest = divmod(t, chunk)
    at_once = chunks_at_once(n, sum(x.size for x in carry)) if n > 1 else 1

    def step(size: int):
        """`body` of `size` chunks of every row."""

        def many(carry, tokens):
            tokens = jax.tree.map(lambda x: x.reshape(b * size, chunk, *x.shape[2:]), tokens)
            zeros = jax.tree.map(lambda x: jnp.zeros((b * size, *x.shape[1:]), x.dtype), carry)
            kept = call.within(tokens[-1]).kept(chunk)
            before, last = states_before(
                carry, body(zeros, tokens)[0], None if kept is None else kept[..., 0], reverse=reverse
            )
            outputs = body(before, tokens)[1]
            return last, jax.tree.map(lambda x: x.reshape(b, size * chunk, *x.shape[2:]), outputs)

        return body if size == 1 else many

    def groups(start: int, stop: int, size: int):
        """`step` of tokens `start` to `stop`, `size` chunks at a time."""
        times = (stop - start) // (size * chunk)

        def run(carry):
            def cut(x):
                return x[:, start:stop].reshape(b, times, size * chunk, *x.shape[2:]).swapaxes(0, 1)

            carry, outputs = lax.scan(step(size), carry, jax.tree.map(cut, tokens), reverse=reverse)
            return carry, jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(b, stop - start, *x.shape[3:]), outputs)

        def once(carry):
            return step(size)(carry, jax.tree.map(lambda x: x[:, start:stop], tokens))

        return once if times == 1 else run

    whole, left = n * chunk, n % at_once * chunk
    parts = [groups(0, whole - left, at_once)] if n else []
    parts += [groups(whole - left, whole, n % at_once)] if left else []
    parts += [lambda carry: body(carry, jax.tree.map(lambda x: x[:, whole:], tokens))] if rest else []
    outputs = []
    for part in reversed(parts) if reverse else parts:
        carry, output = part(carry)
        outputs.append(output)
    if len(outputs) == 1:
        return carry, outputs[0]
    outputs = outputs[::-1] if reverse else outputs
    return carry, jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *outputs)
