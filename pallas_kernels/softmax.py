"""Dense softmax attention and its gradient.

Scores, softmax and sums are float32; matmuls have the dtype of the queries, and float32 matmuls full precision.
"""

import jax
import jax.numpy as jnp
from jax import lax


def softmax_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    visible: jax.Array,
    bias: jax.Array | None = None,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    """`softmax(scale * q k^T + bias) v` over the visible keys; heads are among the leading axes.

    Args:
      q: queries (..., r, t, k), `r` heads for each head of keys and values.
      k: keys (..., s, k), dtype of `q`.
      v: values (..., s, v), dtype of `q`.
      visible: mask of the keys that a query sees, broadcastable to the scores (..., r, t, s). Every query sees at least
        one key; masked keys are finite.
      bias: added to the scaled scores, float32, broadcastable to them.
      scale: factor of the scores.

    Returns:
      y (..., r, t, v) in the dtype of `q`, and lse (..., r, t), float32: the logarithm of the sum of weights.
    """
    unit, r = _unit_axes(q)
    q = lax.squeeze(q, unit)
    k, v = (_squeeze_keys(x, unit) for x in (k, v))
    scores = scale * _matmul(f"...{r}tk,...sk->...{r}ts", q, k)
    if bias is not None:
        scores = scores + lax.squeeze(bias, unit)
    scores = jnp.where(lax.squeeze(visible, unit), scores, -jnp.inf)
    highest = lax.stop_gradient(scores.max(axis=-1, keepdims=True, initial=-jnp.inf))
    weights = jnp.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    # Normalizing after the product saves a pass over the scores.
    y = _matmul(f"...{r}ts,...sv->...{r}tv", weights.astype(q.dtype), v) / total
    return lax.expand_dims(y.astype(q.dtype), unit), lax.expand_dims((highest + jnp.log(total))[..., 0], unit)


def softmax_attention_gradients(q, k, v, y, lse, dy, *, visible, scale: float):
    """Gradients of `softmax_attention` without bias, from its results y and lse, and dy.

    With p_ij = exp(scale q_i.k_j - lse_i) and ds_ij = scale p_ij (dy_i.v_j - dy_i.y_i):

        dq_i = sum_j ds_ij k_j        dk_j = sum_i ds_ij q_i        dv_j = sum_i p_ij dy_i

    in float32, dk and dv summed over the `r` heads.
    """
    unit, r = _unit_axes(q)
    q, y, lse, dy, visible = (lax.squeeze(x, unit) for x in (q, y, lse, dy, visible))
    shapes = k.shape, v.shape
    k, v = (_squeeze_keys(x, unit) for x in (k, v))
    scores = scale * _matmul(f"...{r}tk,...sk->...{r}ts", q, k)
    p = jnp.where(visible, jnp.exp(scores - lse[..., None]), 0)
    delta = (dy.astype(jnp.float32) * y.astype(jnp.float32)).sum(-1, keepdims=True)
    ds = (scale * p * (_matmul(f"...{r}tv,...sv->...{r}ts", dy, v) - delta)).astype(q.dtype)
    dq = _matmul(f"...{r}ts,...sk->...{r}tk", ds, k)
    dk = _matmul(f"...{r}ts,...{r}tk->...sk", ds, q)
    dv = _matmul(f"...{r}ts,...{r}tv->...sv", p.astype(q.dtype), dy)
    return lax.expand_dims(dq, unit), dk.reshape(shapes[0]), dv.reshape(shapes[1])


def _unit_axes(q) -> tuple[tuple[int, ...], str]:
    """Leading axes of size 1, without which XLA on a CPU fuses softmax and matmuls, and "r" unless one of them."""
    unit = tuple(i for i, n in enumerate(q.shape[:-2]) if n == 1)
    return unit, "" if q.ndim - 3 in unit else "r"


def _squeeze_keys(x, unit):
    return lax.squeeze(x, [i for i in unit if i < x.ndim - 2])


def _matmul(spec: str, x, y):
    exact = x.dtype == jnp.float32
    precision = lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT
    return jnp.einsum(spec, x, y, precision=precision, preferred_element_type=jnp.float32)
