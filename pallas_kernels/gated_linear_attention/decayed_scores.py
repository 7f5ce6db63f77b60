"""Decayed scores within a chunk, and the decays from and to the borders of the chunk.

    scores[i, j] = sum_k rows[i, k] columns[j, k] exp(log_decay[j + 1, k] + .. + log_decay[i, k])        i >= j

Exponents are nonpositive, and no sum is a difference of two sums. A decay per channel of the keys can be split into
factors of i and j with nonpositive exponents only at a border between j and i. So the chunk is cut into short pieces,
within which every pair has its own sum per channel. On a CPU neighboring pieces are joined recursively: the border
between two serves all pairs across it. On an accelerator the border before each piece serves its pairs with all earlier
tokens.

Sums are matrix products with a triangle of ones. On an accelerator channel decays are summed by selection, which the
compiler fuses with the readers of the sums.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.xla_chunks import in_parallel, product

PIECE, SHORT = 16, 8
"""A short sequence is one chunk of whole `PIECE`s; pieces have at least `SHORT` tokens: the chunk length over a power
of two."""


def decayed_scores(
    rows: jax.Array,
    columns: jax.Array,
    log_decay: jax.Array | None,
    *,
    precision: lax.Precision,
) -> jax.Array:
    """The equation of the module docstring for i >= j; other entries are finite and must be masked.

    Args:
      rows: queries (b, h, c, k), float32.
      columns: keys (b, h, c, k), float32.
      log_decay: logarithms of decays (b or 1, h or 1, c, k or 1), at most 0, finite, float32. None: no decay.
      precision: of the matrix products of rows and columns.

    Returns:
      (b, h, c, c) float32.
    """
    if log_decay is None:
        return _products(rows, columns, precision)
    if log_decay.shape[-1] == 1:
        return _products(rows, columns, precision) * jnp.exp(_between(log_decay)[:, :, 0])
    piece = _piece(rows.shape[2])
    rows, columns, decay = (_pieces(x, piece) for x in (rows, columns, log_decay))
    if in_parallel():
        return _at_once(rows, columns, decay, precision)
    scores = _near(rows, columns, decay)
    before, after = sums_to_borders(decay)
    while scores.shape[2] > 1:
        queries = rows[:, :, 1::2] * jnp.exp(before[:, :, 1::2])
        keys = columns[:, :, 0::2] * jnp.exp(after[:, :, 0::2])
        across = product("bhnik,bhnjk->bhnij", queries, keys, precision=precision)
        first = jnp.pad(scores[:, :, 0::2], [(0, 0)] * 4 + [(0, scores.shape[4])])
        scores = jnp.concatenate([first, jnp.concatenate([across, scores[:, :, 1::2]], axis=4)], axis=3)
        whole = before[:, :, :, -1:]
        before = _joined(before[:, :, 0::2], before[:, :, 1::2] + whole[:, :, 0::2])
        after = _joined(after[:, :, 0::2] + whole[:, :, 1::2], after[:, :, 1::2])
        rows, columns = (_joined(x[:, :, 0::2], x[:, :, 1::2]) for x in (rows, columns))
    return scores[:, :, 0]


def sums_to_borders(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums over the tokens (axis -2) up to each one, inclusive, and over the tokens after each one."""
    if x.shape[-1] > 1 and in_parallel():
        return _piece_by_piece(x)
    c = x.shape[-2]
    to_first, to_last = np.tri(c, dtype=np.float32), np.tri(c, k=-1, dtype=np.float32).T
    return _triangle_product(to_first, x), _triangle_product(to_last, x)


def _products(rows: jax.Array, columns: jax.Array, precision: lax.Precision) -> jax.Array:
    return product("bhik,bhjk->bhij", rows, columns, precision=precision)


def _piece(c: int) -> int:
    """Tokens of a piece in a chunk of c."""
    while c % 2 == 0 and c // 2 >= SHORT:
        c //= 2
    return c


def _joined(first: jax.Array, second: jax.Array) -> jax.Array:
    return jnp.concatenate([first, second], axis=3)


def _pieces(x: jax.Array, piece: int) -> jax.Array:
    """(b, h, c, k) -> (b, h, pieces, piece, k)."""
    return x.reshape(*x.shape[:2], -1, piece, x.shape[3])


def _near(rows: jax.Array, columns: jax.Array, log_decay: jax.Array) -> jax.Array:
    """Scores within pieces, from arrays (b, h, n, c, k). k is an outer axis, to vectorize on a CPU."""
    rows, columns = (x.swapaxes(3, 4) for x in (rows, columns))
    return (jnp.exp(_between(log_decay)) * rows[..., :, None] * columns[..., None, :]).sum(3)


def _at_once(rows: jax.Array, columns: jax.Array, log_decay: jax.Array, precision: lax.Precision) -> jax.Array:
    """`decayed_scores` of pieces (b, h, n, p, k) in few large kernels: each key is decayed to the border before every
    later piece, with one product per piece."""
    n, p = rows.shape[2:4]
    i, j = np.indices((p, p))[..., None]
    inside = sum(_selected(log_decay[:, :, :, m, None, None], (j < m) & (m <= i)) for m in range(p))
    near = (rows[..., :, None, :] * columns[..., None, :, :] * jnp.exp(inside)).sum(-1)

    before, after = _sums(log_decay, np.less_equal), _sums(log_decay, np.greater)
    i, j, m = np.indices((n, n, n))
    lies_between = ((j < m) & (m < i)).reshape(n * n, n).astype(np.float32)
    between = _triangle_product(lies_between, log_decay.sum(3)).reshape(*log_decay.shape[:2], n, n, -1)
    across_pieces = _selected(jnp.exp(between), (j < i)[:, :, :1])
    keys = (columns * jnp.exp(after))[:, :, None] * across_pieces[:, :, :, :, None]
    across = product("bhipk,bhijqk->bhipjq", rows * jnp.exp(before), keys, precision=precision)
    scores = jnp.where(np.eye(n, dtype=bool)[None, None, :, None, :, None], near[:, :, :, :, None], across)
    return scores.reshape(*scores.shape[:2], n * p, n * p)


def _piece_by_piece(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`sums_to_borders` of channel decays, from the sums of `_at_once`."""
    pieces = _pieces(x, _piece(x.shape[2]))
    whole = pieces.sum(3)
    before = _sums(pieces, np.less_equal) + _sums(whole, np.less)[:, :, :, None]
    after = _sums(pieces, np.greater) + _sums(whole, np.greater)[:, :, :, None]
    return before.reshape(x.shape), after.reshape(x.shape)


def _sums(x: jax.Array, chosen: np.ufunc) -> jax.Array:
    """Sum over the tokens m (axis -2) with `chosen(m, i)`, for each token i."""
    token = np.arange(x.shape[-2])
    return _selected(x[..., None, :], chosen(token[:, None], token)[..., None]).sum(-3)


def _selected(x: jax.Array, where: np.ndarray) -> jax.Array:
    return jnp.where(where.reshape((1,) * (x.ndim - where.ndim) + where.shape), x, 0.0)


def _between(x: jax.Array) -> jax.Array:
    """Sums over j + 1 .. i, 0 for i <= j: (..., t, f) -> (..., f, i, j)."""
    t = x.shape[-2]
    after = np.tri(t, k=-1, dtype=np.float32).reshape((1,) * (x.ndim - 1) + (t, t))  # m, j: whether m > j
    terms = x.swapaxes(-1, -2)[..., :, None] * after
    return _triangle_product(np.tri(t, dtype=np.float32), terms)


def _triangle_product(triangle: np.ndarray, x: jax.Array) -> jax.Array:
    """`triangle @ x` over the last two axes of `x`, in full precision, as decays are exponents."""
    return jnp.einsum("im,...mj->...ij", triangle, x, precision=lax.Precision.HIGHEST)
