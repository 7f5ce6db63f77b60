"""Scores of the tokens of one chunk under decays, and the decay from and to the borders of the chunk.

    scores[i, j] = sum_k rows[i, k] columns[j, k] exp(log_decay[j + 1, k] + .. + log_decay[i, k])        i >= j

No exponent is positive, and no sum is a difference of two sums, which would round away small decays next to large ones.
A decay per token and head is a factor of the score. A decay per channel of the keys is not, and splitting it into a
part of i and a part of j would give one of them a positive exponent, unless j is before a border and i is not: then one
part is the sum from j to the border and the other that from the border to i. So the chunk is cut into short
pieces, whose pairs have a sum of their own for every channel. Then two neighbours are joined, and the results
again, until the chunk is whole: each time the border between the two serves all pairs of tokens across it.

Sums are matrix products with a triangle of ones: on a CPU they are several times faster than `jnp.cumsum`. Within
pieces of channel decays they would be (PIECE, PIECE, k) numbers per piece in memory: an accelerator adds them up
distance by distance instead, which its compiler fuses with the sums over channels.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.dispatch import may_run_on
from pallas_kernels.xla_chunks import product

PIECE, PIECE_ON_CPU = 16, 8
"""Least tokens of a piece: the length of the chunk over a power of two. A short sequence is one chunk of whole
`PIECE`s."""


def decayed_scores(
    rows: jax.Array,
    columns: jax.Array,
    log_decay: jax.Array | None,
    *,
    precision: lax.Precision,
) -> jax.Array:
    """The equation of the module docstring where i >= j; finite numbers elsewhere, to be masked by the caller.

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
    on_cpu = may_run_on("cpu")
    piece = _piece(rows.shape[2], PIECE_ON_CPU if on_cpu else PIECE)
    rows, columns, decay = (_pieces(x, piece) for x in (rows, columns, log_decay))
    scores = (_near if on_cpu else _near_by_distance)(rows, columns, decay)
    before, after = sum_from_start(decay), sum_to_end(decay)
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


def sum_from_start(x: jax.Array) -> jax.Array:
    """Sums over the tokens (axis -2) from the first to each one, both included."""
    return _triangle_product(np.tri(x.shape[-2], dtype=np.float32), x)


def sum_to_end(x: jax.Array) -> jax.Array:
    """Sums over the tokens (axis -2) after each one."""
    return _triangle_product(np.tri(x.shape[-2], k=-1, dtype=np.float32).T, x)


def _products(rows: jax.Array, columns: jax.Array, precision: lax.Precision) -> jax.Array:
    return product("bhik,bhjk->bhij", rows, columns, precision=precision)


def _piece(c: int, least: int) -> int:
    """Tokens of a piece of a chunk of c."""
    while c % 2 == 0 and c // 2 >= least:
        c //= 2
    return c


def _joined(first: jax.Array, second: jax.Array) -> jax.Array:
    return jnp.concatenate([first, second], axis=3)


def _pieces(x: jax.Array, piece: int) -> jax.Array:
    """(b, h, c, k) -> (b, h, pieces, piece, k)."""
    return x.reshape(*x.shape[:2], -1, piece, x.shape[3])


def _near(rows: jax.Array, columns: jax.Array, log_decay: jax.Array) -> jax.Array:
    """Scores within pieces, of arrays (b, h, n, c, k). The sum over k is over an outer axis: vectorized on a CPU."""
    rows, columns = (x.swapaxes(3, 4) for x in (rows, columns))
    return (jnp.exp(_between(log_decay)) * rows[..., :, None] * columns[..., None, :]).sum(3)


def _near_by_distance(rows: jax.Array, columns: jax.Array, log_decay: jax.Array) -> jax.Array:
    """The same for each distance i - j in turn."""
    c = rows.shape[3]
    total, scores = jnp.zeros_like(log_decay), []
    for distance in range(c):
        if distance:
            total = total + _shifted(log_decay, distance - 1)
        scores.append((rows * _shifted(columns, distance) * jnp.exp(total)).sum(-1))
    # Row i has distances c - 1 to 0, then c zeros: a stride that is one shorter aligns them by column.
    by_row = jnp.stack(scores[::-1], axis=-1)
    flat = jnp.pad(by_row, [(0, 0)] * 4 + [(0, c)]).reshape(*by_row.shape[:3], 2 * c * c)
    return flat[..., c - 1 : c - 1 + c * (2 * c - 1)].reshape(*by_row.shape[:3], c, 2 * c - 1)[..., :c]


def _shifted(x: jax.Array, tokens: int) -> jax.Array:
    """Entry i of axis -2 becomes entry i - tokens; zeros at the front."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(tokens, 0), (0, 0)])[..., : x.shape[-2], :]


def _between(x: jax.Array) -> jax.Array:
    """(..., t, f) -> (..., f, i, j): the sum over j + 1 .. i, 0 where i <= j."""
    t = x.shape[-2]
    after = np.tri(t, k=-1, dtype=np.float32).reshape((1,) * (x.ndim - 1) + (t, t))  # m, j: whether m > j
    terms = x.swapaxes(-1, -2)[..., :, None] * after
    return _triangle_product(np.tri(t, dtype=np.float32), terms)


def _triangle_product(triangle: np.ndarray, x: jax.Array) -> jax.Array:
    """`triangle @ x` over the last two axes of `x`, in full precision: decays are exponents."""
    return jnp.einsum("im,...mj->...ij", triangle, x, precision=lax.Precision.HIGHEST)
