"""Linear attention with the second-order Taylor expansion of exp, in chunks, with a recurrent state.

With `s_ij = scale * q_i . k_j` and weights `w_ij = (1 + s_ij + s_ij^2 / 2) * decay^(i - j)` for `j <= i`:

    y_i = sum_j w_ij v_j / (sum_j w_ij + eps)

Source: Based (Arora et al. 2024), sec. 4.1, eqs. 2-4, and App. B, eqs. 5-6 and Algorithms 1-2; decay: App. C.
The weights factor into feature maps, `w_ij = phi(q_i) . psi(k_j)`, so that the past is a sum,
`S = sum_j psi(k_j) v_j^T`. A chunk of `c` tokens meets itself by the quadratic form and all chunks before it
by `S` (Algorithm 1 with tiles of `c` tokens). `1 + s + s^2 / 2 = ((1 + s)^2 + 1) / 2 >= 1/2`, so a
denominator is never near 0.

**Feature layout.** `f = 1 + k + k (k + 1) / 2` (153 for k = 16): the constant 1, then `x_a`, then `x_a x_b`
for `a <= b`, row by row. The key side, which the state holds, is unscaled; the query side carries `scale` and
the factor 1/2 of the squares.

Deviations: the authors' codes keep all `k^2` products (273 features for k = 16), we keep the distinct ones,
as their App. E.2, eq. 9 counts. Their fixed decay also divides a row of its mask by the root of the row's
sum; ours is the plain power, in numerator and denominator alike.
"""

import functools
from typing import Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.array_typing import Array, Float

MAX_QUADRATIC_LENGTH = 256
"""Longest sequence that is one chunk by default."""
DEFAULT_CHUNK = 128
"""Chunk of longer sequences. Forward and backward pass on two CPU cores, k = 16, v = 64, float32, in ms:
(b, t, h) = (32, 256, 1): quadratic 14, chunks of 64 21, of 128 30; (16, 512, 1): 65, 37, 38;
(2, 512, 16): 153, 99, 106; (1, 2048, 16): chunks of 64 111, of 128 103, of 256 122."""


class TaylorState(NamedTuple):
    """Sums over the past, for every query head, also where key/value heads are shared."""

    s: Float[Array, "b h f v"]
    """`sum_j decay^(i - j) psi(k_j) v_j^T`, float32."""
    z: Float[Array, "b h f"]
    """`sum_j decay^(i - j) psi(k_j)`, float32."""


def taylor_feature_count(k_dim: int) -> int:
    """Features `f` of keys of width `k_dim`."""
    return (k_dim + 1) * (k_dim + 2) // 2


def empty_taylor_state(batch_size: int, n_heads: int, k_dim: int, v_dim: int) -> TaylorState:
    """The state before the first token: zeros."""
    shape = (batch_size, n_heads, taylor_feature_count(k_dim))
    return TaylorState(s=jnp.zeros((*shape, v_dim), jnp.float32), z=jnp.zeros(shape, jnp.float32))


@overload
def taylor_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t g k"],
    v: Float[Array, "b t g v"],
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    decay: Float[Array, "h"] | None = None,
    initial_state: TaylorState | None = None,
    return_state: Literal[False] = False,
    chunk_size: int | None = None,
) -> Float[Array, "b t h v"]: ...
@overload
def taylor_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t g k"],
    v: Float[Array, "b t g v"],
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    decay: Float[Array, "h"] | None = None,
    initial_state: TaylorState | None = None,
    return_state: Literal[True],
    chunk_size: int | None = None,
) -> tuple[Float[Array, "b t h v"], TaylorState]: ...
def taylor_attention(
    q,
    k,
    v,
    *,
    scale=None,
    eps=1e-12,
    normalize=True,
    decay=None,
    initial_state=None,
    return_state=False,
    chunk_size=None,
) -> Float[Array, "b t h v"] | tuple[Float[Array, "b t h v"], TaylorState]:
    """Causal Taylor linear attention over `t >= 0` tokens; see the module docstring for the equation.

    All sums are float32, whatever the inputs. Cost a token and head: `2 c (k + v)` operations within a chunk
    and `4 f v` across chunks; memory for the backward pass: one state a chunk. A sequence of one chunk with
    no state in or out takes the quadratic form alone and makes no features.

    Args:
      q: queries; `h` is a multiple of `g`, and each key/value head serves `h / g` neighbouring query heads.
      k: keys.
      v: values.
      scale: factor of the scores; None: `k_dim ** -0.5`.
      eps: added to the denominator. 1e-12 is the authors'; flash-linear-attention takes 1e-6.
      normalize: divides by the sum of the weights; False: `y_i = sum_j w_ij v_j`.
      decay: what a weight keeps a token, in (0, 1]; None: 1.
      initial_state: the sums over the tokens before; None: there are none.
      return_state: returns the sums after the last token too.
      chunk_size: tokens that meet by the quadratic form, positive; any `t` is served. None: see
        `DEFAULT_CHUNK`.

    Returns:
      Outputs in the dtype of `v`, or (outputs, state). Gradients flow through both, and into `initial_state`.

    Raises:
      ValueError: shapes that do not fit each other, or a chunk size below 1.
    """
    _check(q.shape, k.shape, v.shape, decay, initial_state)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"taylor_attention: chunk_size={chunk_size} must be positive; None chooses")
    (b, t, h, k_dim), v_dim = q.shape, v.shape[-1]
    chunk = chunk_size or default_chunk(t)
    log_decay = None if decay is None else jnp.log(decay.astype(jnp.float32))
    run_chunk = functools.partial(
        _chunk,
        scale=k_dim**-0.5 if scale is None else scale,
        log_decay=log_decay,
        eps=eps,
        normalize=normalize,
    )
    if t <= chunk and initial_state is None and not return_state:
        return run_chunk(None, (q, k, v))[1]
    state = empty_taylor_state(b, h, k_dim, v_dim) if initial_state is None else initial_state
    carry = jnp.concatenate([state.s, state.z[..., None]], axis=-1)
    carry, y = _scan_chunks(run_chunk, carry, (q, k, v), chunk)
    return (y, TaylorState(s=carry[..., :-1], z=carry[..., -1])) if return_state else y


def taylor_attention_step(
    state: TaylorState,
    q: Float[Array, "b h k"],
    k: Float[Array, "b g k"],
    v: Float[Array, "b g v"],
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    decay: Float[Array, "h"] | None = None,
) -> tuple[Float[Array, "b h v"], TaylorState]:
    """One token (Based, eq. 3): `4 f v` operations a head, whatever the position.

    Equals `taylor_attention` with `t = 1`; arguments as there. Returns (output in the dtype of `v`, state).
    """
    _check(
        (q.shape[0], 1, *q.shape[1:]),
        (k.shape[0], 1, *k.shape[1:]),
        (v.shape[0], 1, *v.shape[1:]),
        decay,
        state,
    )
    group = q.shape[1] // k.shape[1]
    k_bhk, v_bhv = (jnp.repeat(x.astype(jnp.float32), group, axis=1) for x in (k, v))
    features = _features(k_bhk)
    s, z = state
    if decay is not None:
        kept = decay.astype(jnp.float32)
        s, z = s * kept[None, :, None, None], z * kept[None, :, None]
    s = s + features[..., :, None] * v_bhv[..., None, :]
    z = z + features
    read = _query_features(q.astype(jnp.float32) * (q.shape[-1] ** -0.5 if scale is None else scale))
    y = jnp.einsum("bhf,bhfv->bhv", read, s)
    if normalize:
        y = y / (jnp.einsum("bhf,bhf->bh", read, z) + eps)[..., None]
    return y.astype(v.dtype), TaylorState(s, z)


def default_chunk(t: int) -> int:
    """The chunk that `taylor_attention` chooses for `t` tokens."""
    return max(t, 1) if t <= MAX_QUADRATIC_LENGTH else DEFAULT_CHUNK


def _scan_chunks(run_chunk, carry: jax.Array, qkv: tuple[jax.Array, ...], chunk: int):
    """Whole chunks by `lax.scan`, then the rest as one shorter chunk: no padding that could enter a sum."""
    b, t = qkv[0].shape[:2]
    run_chunk = jax.checkpoint(run_chunk)  # only the carries are stored for the backward pass
    n = t // chunk
    whole = n * chunk
    outputs = []
    if n:
        stacked = tuple(x[:, :whole].reshape(b, n, chunk, *x.shape[2:]).swapaxes(0, 1) for x in qkv)
        carry, y = jax.lax.scan(run_chunk, carry, stacked)
        outputs.append(y.swapaxes(0, 1).reshape(b, whole, *y.shape[3:]))
    if whole < t or not n:
        carry, y = run_chunk(carry, tuple(x[:, whole:] for x in qkv))
        outputs.append(y)
    return carry, outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=1)


def _chunk(carry, qkv, *, scale, log_decay, eps, normalize):
    """One chunk of `(b, c, heads, .)` arrays: `(carry or None, qkv) -> (carry, y)`.

    The carry `(b, h, f, v + 1)` is `S` with `z` as its last column: the values get a column of ones, so that
    numerator and denominator come out of the same matmuls.
    """
    q, k, v = qkv
    group = q.shape[2] // k.shape[2]
    q = q.astype(jnp.float32).swapaxes(1, 2) * scale
    k, values = (jnp.repeat(x.astype(jnp.float32).swapaxes(1, 2), group, axis=1) for x in (k, v))
    values = jnp.concatenate([values, jnp.ones_like(values[..., :1])], axis=-1)
    sums = _within_chunk(q, k, values, log_decay)
    if carry is not None:
        sums = sums + _from_past(q, carry, log_decay)
        carry = _advance(carry, k, values, log_decay)
    y = sums[..., :-1] / (sums[..., -1:] + eps) if normalize else sums[..., :-1]
    return carry, y.swapaxes(1, 2).astype(v.dtype)


def _within_chunk(q: jax.Array, k: jax.Array, values: jax.Array, log_decay: jax.Array | None) -> jax.Array:
    """The quadratic form: `sum_{j <= i} w_ij [v_j, 1]`, `(b, h, c, v + 1)`."""
    scores = jnp.einsum("bhik,bhjk->bhij", q, k)
    weights = 1 + scores * (1 + 0.5 * scores)
    index = np.arange(q.shape[2])
    distance = index[:, None] - index[None, :]
    if log_decay is not None:
        # Negative distances are masked below; unclipped, their powers would overflow and make NaN gradients.
        powers = jnp.asarray(np.maximum(distance, 0), jnp.float32)
        weights = weights * jnp.exp(log_decay[:, None, None] * powers[None])[None]
    weights = jnp.where((distance >= 0)[None, None], weights, jnp.zeros_like(weights))
    return jnp.einsum("bhij,bhjv->bhiv", weights, values)


def _from_past(q: jax.Array, carry: jax.Array, log_decay: jax.Array | None) -> jax.Array:
    """What the tokens before the chunk add to its sums: `decay^(i + 1) phi(q_i) S`, `(b, h, c, v + 1)`."""
    sums = jnp.einsum("bhif,bhfv->bhiv", _query_features(q), carry)
    return sums if log_decay is None else sums * _powers(log_decay, np.arange(1, q.shape[2] + 1))


def _advance(carry: jax.Array, k: jax.Array, values: jax.Array, log_decay: jax.Array | None) -> jax.Array:
    """The carry after the chunk: `decay^c S + sum_j decay^(c - 1 - j) psi(k_j) [v_j, 1]`."""
    if log_decay is not None:
        c = k.shape[2]
        carry = carry * _powers(log_decay, np.array([c]))
        values = values * _powers(log_decay, c - 1 - np.arange(c))
    return carry + jnp.einsum("bhif,bhiv->bhfv", _features(k), values)


def _powers(log_decay: jax.Array, exponents: np.ndarray) -> jax.Array:
    """`decay ** exponents`, `(1, h, n, 1)`."""
    return jnp.exp(log_decay[:, None] * jnp.asarray(exponents, jnp.float32)[None, :])[None, :, :, None]


def _features(x: jax.Array) -> jax.Array:
    """psi: `(..., k) -> (..., f)`, the products of all pairs of `[1, x]`.

    Slices, not gathers: a gather's transpose is a scatter, twice as slow in the backward pass on a CPU.
    """
    x = jnp.concatenate([jnp.ones_like(x[..., :1]), x], axis=-1)
    return jnp.concatenate([x[..., a : a + 1] * x[..., a:] for a in range(x.shape[-1])], axis=-1)


def _query_features(x: jax.Array) -> jax.Array:
    """phi: as `_features` with the Taylor coefficients, 1/2 on the squares; `x` is already scaled."""
    a, b = np.triu_indices(x.shape[-1] + 1)
    coefficients = np.where((a == b) & (a > 0), 0.5, 1.0).astype(np.float32)
    return _features(x) * coefficients.reshape((1,) * (x.ndim - 1) + (-1,))


def _check(q: tuple, k: tuple, v: tuple, decay: jax.Array | None, state: TaylorState | None) -> None:
    (b, t, h, k_dim), g = q, k[2]
    if k != (b, t, g, k_dim) or v[:3] != (b, t, g):
        raise ValueError(
            f"taylor_attention: q, k, v of shapes {q}, {k}, {v} must share batch and "
            "time, q and k their width, k and v their heads"
        )
    if g == 0 or h % g:
        raise ValueError(f"taylor_attention: {h} query heads must be a multiple of {g} key/value heads")
    if decay is not None and decay.shape != (h,):
        raise ValueError(f"taylor_attention: decay of shape {decay.shape} must have one entry a query head, ({h},)")
    expected = (b, h, taylor_feature_count(k_dim))
    if state is not None and (state.z.shape != expected or state.s.shape != (*expected, v[3])):
        raise ValueError(
            f"taylor_attention: state of shapes s={state.s.shape}, z={state.z.shape} "
            f"must be s={(*expected, v[3])}, z={expected}; make it with empty_taylor_state"
        )
