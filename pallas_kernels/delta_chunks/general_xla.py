"""The general delta rule in chunks, in plain XLA, with one function per kernel.

With G the sums of log decays from the start of a chunk of c tokens, S the state before it, and A, L decayed products of
tokens with earlier ones (A strictly, read before the token's own decay),

    read_i = exp(G_i-1) u_i    query_i = exp(G_i) q_i    write_i = exp(G_c - G_i) k_i    change_i = exp(G_c - G_i) z_i
    X = mix (A_uk V + read S)                            mix = (I - A_uz)^-1, by `ut_transform`
    Y = L_qk V + L_qz X + query S
    S' = Diag(keep) S + write^T V + change^T X           keep = exp(G_c)

X are the reads u_t^T S_{t-1}. In reverse, with U the cotangent of the state after the chunk,

    dX = mix^T (L_qz^T dY + change U)                    dV = L_qk^T dY + A_uk^T dX + write U
    U' = Diag(keep) U + query^T dY + read^T dX

are the cotangents of A_uk V + read S, of V and of the state before the chunk. The inverse is not differentiated: X
solves (I - A_uz) X = A_uk V + read S, so the cotangents of the four products are [dY; dX] [V; X]^T.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.gated_linear_attention.decayed_scores import decayed_scores, sums_to_borders
from pallas_kernels.ut_transform import xla as ut_transform
from pallas_kernels.xla_chunks import precision_of, product

CHUNK = 64


class Prepared(NamedTuple):
    """Arrays that do not depend on states: products (b, n, h, c, c) and tokens (b, t, h, k) in the dtype of the inputs,
    keep (b, n, h, k) float32."""

    uk: jax.Array
    """A_uk; row i reads, column j writes."""
    system: jax.Array
    """-A_uz."""
    qk: jax.Array
    qz: jax.Array
    read: jax.Array
    query: jax.Array
    write: jax.Array
    change: jax.Array
    keep: jax.Array


class Saved(NamedTuple):
    """Residuals, in the dtype of the inputs."""

    x: jax.Array
    """X, (b, t, h, v)."""
    states: jax.Array
    """States before every chunk, transposed, (b, n, h, v, k)."""
    mix: jax.Array
    """(b, n, h, c, c)."""


def prepare(q, k, u, z, log_decay) -> Prepared:
    """`Prepared` of tokens (b, t, h, k), t a multiple of the chunk; float32 log_decay (b, t, h, k). Differentiable."""
    b, t, h, width = q.shape
    q, k, u, z, log_decay = (_heads_first(x) for x in (q, k, u, z, log_decay))
    precision = precision_of(q.dtype)
    q_, k_, u_, z_ = (x.astype(jnp.float32) for x in (q, k, u, z))
    ago = jnp.concatenate([u_[:, :, 1:], jnp.zeros_like(u_[:, :, :1])], axis=2)

    def first(x):
        return jnp.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0)))[:, :, :-1]

    lower = np.tri(CHUNK, dtype=bool)[None, None]

    def scores(rows, columns):
        found = jnp.where(lower, decayed_scores(rows, columns, log_decay, precision=precision), 0.0)
        return (first(found) if rows is ago else found).astype(q.dtype).reshape(b, -1, h, CHUNK, CHUNK)

    def tokens(x, sums):
        x = (x * jnp.exp(sums)).astype(q.dtype)
        return x.reshape(b, -1, h, CHUNK, width).swapaxes(2, 3).reshape(b, t, h, width)

    since, until = sums_to_borders(log_decay)
    return Prepared(
        uk=scores(ago, k_),
        system=-scores(ago, z_),
        qk=scores(q_, k_),
        qz=scores(q_, z_),
        read=tokens(u_, first(since)),
        query=tokens(q_, since),
        write=tokens(k_, until),
        change=tokens(z_, until),
        keep=jnp.exp(since[:, :, -1]).reshape(b, -1, h, width),
    )


def inverse(system):
    """(I + system)^-1 in the dtype of the system, computed in float32."""
    return ut_transform.inverse(system.astype(jnp.float32), None, system.dtype)


def recur(v, given: Prepared, mix, state, *, save: bool):
    """Y, the last state (b, h, k, v) float32, and, if save, X and the states of `Saved`, else None.

    state: S before the first chunk; None: zeros.
    """
    matmul = _matmul(v.dtype)
    if state is None:
        state = jnp.zeros((v.shape[0], v.shape[2], given.read.shape[3], v.shape[3]), jnp.float32)

    def chunk(state, now):
        v, p, mix = now
        v, read, query, write, change = (x.swapaxes(1, 2) for x in (v, p.read, p.query, p.write, p.change))
        rounded = state.astype(v.dtype)
        x = matmul(mix, (matmul(p.uk, v) + matmul(read, rounded)).astype(v.dtype)).astype(v.dtype)
        y = matmul(p.qk, v) + matmul(p.qz, x) + matmul(query, rounded)
        after = p.keep[..., None] * state + matmul(write.mT, v) + matmul(change.mT, x)
        return after, (y.astype(v.dtype), *((x, rounded.mT) if save else ()))

    chunks = jax.tree.map(lambda x: x.swapaxes(0, 1), (_by_chunk(v), _chunked(given), mix))
    last, (y, *saved) = lax.scan(chunk, state, chunks)

    def whole(y):
        return y.transpose(1, 0, 3, 2, 4).reshape(v.shape)

    return whole(y), last, *((whole(saved[0]), saved[1].swapaxes(0, 1)) if save else (None, None))


def recur_reverse(dy, given: Prepared, mix, dstate):
    """dX and dV (b, t, h, v), and U after every chunk, transposed, (b, n, h, v, k), in the dtype of dy; and U before
    the first chunk, float32. dstate: U after the last chunk; None: zeros."""
    matmul = _matmul(dy.dtype)
    if dstate is None:
        dstate = jnp.zeros((dy.shape[0], dy.shape[2], given.read.shape[3], dy.shape[3]), jnp.float32)

    def chunk(state, now):
        dy, p, mix = now
        dy, read, query, write, change = (x.swapaxes(1, 2) for x in (dy, p.read, p.query, p.write, p.change))
        rounded = state.astype(dy.dtype)
        total = (matmul(p.qz.mT, dy) + matmul(change, rounded)).astype(dy.dtype)
        dx = matmul(mix.mT, total).astype(dy.dtype)
        dv = (matmul(p.qk.mT, dy) + matmul(p.uk.mT, dx) + matmul(write, rounded)).astype(dy.dtype)
        before = p.keep[..., None] * state + matmul(query.mT, dy) + matmul(read.mT, dx)
        return before, (dx, dv, rounded.mT)

    chunks = jax.tree.map(lambda x: x.swapaxes(0, 1), (_by_chunk(dy), _chunked(given), mix))
    first, (dx, dv, states) = lax.scan(chunk, dstate, chunks, reverse=True)
    dx, dv = (x.transpose(1, 0, 3, 2, 4).reshape(dy.shape) for x in (dx, dv))
    return dx, dv, states.swapaxes(0, 1), first


def gradients(q, k, u, z, log_decay, v, x, dy, dx, before, after):
    """dq, dk, du, dz and the gradient of log_decay; before and after: S and U, transposed."""
    matmul = _matmul(v.dtype)
    v, x, dy, dx = (_by_chunk(a).swapaxes(2, 3) for a in (v, x, dy, dx))
    vectors = (matmul(dx, before), matmul(dy, before), matmul(v, after), matmul(x, after))
    dread, dquery, dwrite, dchange = (a.swapaxes(2, 3).reshape(q.shape) for a in vectors)
    cotangents = Prepared(
        uk=matmul(dx, v.mT),
        system=-matmul(dx, x.mT),
        qk=matmul(dy, v.mT),
        qz=matmul(dy, x.mT),
        read=dread,
        query=dquery,
        write=dwrite,
        change=dchange,
        keep=(before.astype(jnp.float32) * after.astype(jnp.float32)).sum(-2),
    )
    # In float32: the rounding of `prepare` has no derivative.
    inputs = [a.astype(jnp.float32) for a in (q, k, u, z)]
    found = jax.vjp(prepare, *inputs, log_decay)[1](cotangents)
    return *(a.astype(q.dtype) for a in found[:4]), found[4]


def _chunked(given: Prepared) -> Prepared:
    """Tokens in chunks, (b, n, c, h, k)."""
    cut = {name: _by_chunk(getattr(given, name)) for name in ("read", "query", "write", "change")}
    return given._replace(**cut)


def _by_chunk(x):
    """(b, t, h, .) -> (b, n, c, h, .)."""
    return x.reshape(x.shape[0], -1, CHUNK, *x.shape[2:])


def _heads_first(x):
    """(b, t, h, .) -> (b n, h, c, .)."""
    return x.reshape(-1, CHUNK, *x.shape[2:]).swapaxes(1, 2)


def _matmul(dtype):
    """Matrix product over the last two axes, float32."""

    def matmul(x, y):
        spec = "bhij,bhjk->bhik" if x.ndim == 4 else "bnhij,bnhjk->bnhik"
        x, y = (a.astype(jnp.float32) for a in (x, y))
        return product(spec, x, y, precision=precision_of(dtype))

    return matmul
